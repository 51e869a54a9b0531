// Made-up images of any number and size whose classes can be learned. Class c has a smooth pattern of its own, the same in
// every set; an image is that pattern, moved by up to an eighth of its sides, with more or less contrast, under noise.
#pragma once

#include <cstdint>
#include <string>

namespace motley::io {

struct SyntheticImages {
  std::uint64_t samples = 1000;
  std::int64_t height = 32, width = 32, channels = 3;
  std::int64_t classes = 10;  // at most 65536
  std::uint64_t seed =
      1;  // of everything but the patterns: another seed is another sample of the same classes
};

// Image `index` [height, width, channels], and its label. A pure function of its arguments, in whole numbers: the same
// bytes on every machine.
std::uint16_t draw_synthetic_image(const SyntheticImages& set, std::uint64_t index, std::uint8_t* out);

// Writes the set, packed, in pieces of a few megabytes (or one image). Error(input) when it cannot be written.
void write_synthetic_images(const SyntheticImages& set, const std::string& out_path);

}  // namespace motley::io
