#include "io/augmentation.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "io/draws.h"

namespace motley::io {
namespace {

struct Change {
  std::int64_t down = 0, right = 0;  // where in the old image the new one begins
  bool flip = false;
};

// The same numbers decide the same whatever else is asked for.
Change draw_change(const Augmentation& augmentation, const RandomKey& key, std::uint32_t slot) {
  Draws draws(key, slot);
  const auto places = static_cast<std::uint32_t>(2 * augmentation.crop_padding + 1);
  Change change;
  change.down = static_cast<std::int64_t>(draws.below(places)) - augmentation.crop_padding;
  change.right = static_cast<std::int64_t>(draws.below(places)) - augmentation.crop_padding;
  change.flip = draws.below(2) == 1 && augmentation.flip;
  return change;
}

template <std::int64_t fixed_channels>
void reverse(const std::uint8_t* in, std::int64_t width, std::int64_t any_channels, std::uint8_t* out) {
  const std::int64_t channels = fixed_channels > 0 ? fixed_channels : any_channels;
  for (std::int64_t x = 0; x < width; ++x) {
    for (std::int64_t c = 0; c < channels; ++c) out[x * channels + c] = in[(width - 1 - x) * channels + c];
  }
}

void reverse_pixels(const std::uint8_t* in, std::int64_t width, std::int64_t channels, std::uint8_t* out) {
  if (channels == 1) return reverse<1>(in, width, channels, out);
  if (channels == 3) return reverse<3>(in, width, channels, out);
  reverse<0>(in, width, channels, out);
}

// One image; `old` is a copy of it, `line` holds a row.
void apply(const Change& change, const Shape& image, const std::uint8_t* old, std::uint8_t* line,
           std::uint8_t* out) {
  const std::int64_t height = image[0], width = image[1], channels = image[2];
  const std::int64_t first = std::clamp<std::int64_t>(-change.right, 0, width);
  const std::int64_t last = std::clamp<std::int64_t>(width - change.right, 0, width);
  const auto row_bytes = static_cast<std::size_t>(width * channels);
  for (std::int64_t y = 0; y < height; ++y) {
    std::uint8_t* const to = out + y * width * channels;
    const std::int64_t from = y + change.down;
    if (from < 0 || from >= height || first >= last) {
      std::memset(to, 0, row_bytes);
      continue;
    }
    std::uint8_t* const row = change.flip ? line : to;
    std::memset(row, 0, static_cast<std::size_t>(first * channels));
    std::memcpy(row + first * channels, old + (from * width + first + change.right) * channels,
                static_cast<std::size_t>((last - first) * channels));
    std::memset(row + last * channels, 0, static_cast<std::size_t>((width - last) * channels));
    if (change.flip) reverse_pixels(row, width, channels, to);
  }
}

}  // namespace

void augment(const Augmentation& augmentation, const Shape& image, std::span<const SlotRun> runs,
             std::span<std::uint8_t> pixels) {
  const auto image_bytes = static_cast<std::size_t>(image.elements());
  std::vector<std::uint8_t> old(image_bytes), line(static_cast<std::size_t>(image[1] * image[2]));
  std::size_t done = 0;
  for (const SlotRun& run : runs) {
    const RandomKey key(augmentation.seed, Purpose::augmentation, 0, run.step);
    MOTLEY_CHECK((done + run.rows) * image_bytes <= pixels.size());
    for (std::uint64_t i = 0; i < run.rows; ++i, ++done) {
      const Change change = draw_change(augmentation, key, run.first_slot + static_cast<std::uint32_t>(i));
      std::uint8_t* const now = pixels.data() + done * image_bytes;
      std::memcpy(old.data(), now, image_bytes);
      apply(change, image, old.data(), line.data(), now);
    }
  }
  MOTLEY_CHECK(done * image_bytes == pixels.size());
}

}  // namespace motley::io
