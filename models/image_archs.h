// The image networks that --arch picks from. A family is a file that adds its members, and a line in image_archs.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/image_network.h"

namespace motley {

struct ImageArch {
  std::string name;  // "lenet"
  // What it was made for: [height, width, channels], and how many classes.
  Shape input;
  std::int64_t classes = 10;
  // Pixels of the shorter side that its kernels and strides need: of smaller images nothing is left to classify.
  std::int64_t least_side = 1;
  // Error(usage) for images of a size that it has no form for.
  std::function<std::unique_ptr<ImageNetwork>(const Shape& input, std::int64_t classes)> make;
};

// In the order in which they are listed.
const std::vector<ImageArch>& image_archs();

// Error(usage) for a name that no network has, with the nearest one that there is.
const ImageArch& find_image_arch(const std::string& name);

// Error(input) when images [height, width, channels] are too small for the network; `where` says whose they are.
void check_fits(const ImageArch& arch, const Shape& input, const std::string& where);

}  // namespace motley
