// Random changes of training images that do not change their class (He et al., "Deep residual learning", 2016, section
// 4.2): padded by black pixels, cropped to the old size at a random place, and mirrored in half of the cases, as by
// torchvision's RandomCrop and RandomHorizontalFlip.
#pragma once

#include <cstdint>
#include <span>

#include "core/shape.h"
#include "io/sample_reader.h"

namespace motley::io {

struct Augmentation {
  std::int64_t crop_padding = 0;  // pixels on each side; 0: no cropping
  bool flip = false;              // left and right
  std::uint64_t seed = 0;

  bool changes_nothing() const { return crop_padding == 0 && !flip; }
};

// pixels [rows of all runs, height, width, channels], in place; `image` is [height, width, channels]. What happens to a
// row depends on the seed, its step and its slot alone (law 3).
void augment(const Augmentation& augmentation, const Shape& image, std::span<const SlotRun> runs,
             std::span<std::uint8_t> pixels);

}  // namespace motley::io
