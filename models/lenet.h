// LeNet in the form of the dynamic-partition experiments, parameters named as there: 62,006 of them for 32x32x3
// images and 10 classes.
#pragma once

#include <cstdint>
#include <memory>

#include "models/image_network.h"

namespace motley {

// input [height, width, channels], both sides at least 16.
std::unique_ptr<ImageNetwork> make_lenet(const Shape& input, std::int64_t classes);

}  // namespace motley
