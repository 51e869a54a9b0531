#include "io/synthetic_images.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/philox.h"
#include "io/draws.h"
#include "io/image_set.h"

namespace motley::io {
namespace {

// A pattern is interpolated between this many points along each side.
constexpr std::int64_t grid_points = 5;
constexpr std::int64_t unit = 256;         // fixed point: one step of the grid
constexpr std::uint32_t noise_range = 97;  // grey levels, centred at 0

// What is between grid points: the one before, and how far behind it, in units.
struct Place {
  std::int64_t point = 0, fraction = 0;
};

std::vector<Place> places(std::int64_t extent, std::int64_t shift) {
  std::vector<Place> list;
  for (std::int64_t i = 0; i < extent; ++i) {
    const std::int64_t moved = std::clamp<std::int64_t>(i + shift, 0, extent - 1);
    const std::int64_t at = (2 * moved + 1) * (grid_points - 1) * unit / (2 * extent);
    list.push_back({at / unit, at % unit});
  }
  return list;
}

// Noise, four values of each random number.
class Noise {
 public:
  explicit Noise(Draws& draws) : draws_(draws) {}

  // About uniform, and centred at 0.
  std::int64_t next() {
    if (left_ == 0) word_ = draws_.next();
    left_ = (left_ + 3) % 4;
    const std::uint32_t byte = word_ & 0xff;
    word_ >>= 8;
    return static_cast<std::int64_t>((byte * noise_range) >> 8) - noise_range / 2;
  }

 private:
  Draws& draws_;
  std::uint32_t word_ = 0;
  int left_ = 0;
};

// Uniform in [-most, most].
std::int64_t draw_shift(Draws& draws, std::int64_t most) {
  return static_cast<std::int64_t>(draws.below(static_cast<std::uint32_t>(2 * most + 1))) - most;
}

}  // namespace

std::uint16_t draw_synthetic_image(const SyntheticImages& set, std::uint64_t index, std::uint8_t* out) {
  const RandomKey key(set.seed, Purpose::synthesis, 0, static_cast<std::uint32_t>(index >> 32));
  Draws draws(key, static_cast<std::uint32_t>(index));
  const std::uint32_t label = draws.below(static_cast<std::uint32_t>(set.classes));
  const std::vector<Place> rows = places(set.height, draw_shift(draws, set.height / 8));
  const std::vector<Place> columns = places(set.width, draw_shift(draws, set.width / 8));
  const std::int64_t contrast = draws.between(96, 160);

  const std::int64_t channels = set.channels;
  std::vector<std::int64_t> grid(static_cast<std::size_t>(grid_points * grid_points * channels));
  Draws pattern(RandomKey(0, Purpose::synthesis, 1, label), 0);
  for (std::int64_t& value : grid) value = static_cast<std::int64_t>(pattern.below(256)) - 128;
  const auto at = [&](std::int64_t row, std::int64_t column, std::int64_t channel) {
    return grid[static_cast<std::size_t>((row * grid_points + column) * channels + channel)];
  };

  Noise noise(draws);
  std::vector<std::int64_t> line(static_cast<std::size_t>(grid_points * channels));
  for (const Place& row : rows) {
    for (std::int64_t g = 0; g < grid_points; ++g) {
      for (std::int64_t c = 0; c < channels; ++c) {
        line[static_cast<std::size_t>(g * channels + c)] =
            at(row.point, g, c) * (unit - row.fraction) + at(row.point + 1, g, c) * row.fraction;
      }
    }
    for (const Place& column : columns) {
      const std::int64_t* const left = line.data() + column.point * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t smooth = left[c] * (unit - column.fraction) + left[channels + c] * column.fraction;
        const std::int64_t value = 128 + smooth * contrast / (unit * unit * unit) + noise.next();
        *out++ = static_cast<std::uint8_t>(std::clamp<std::int64_t>(value, 0, 255));
      }
    }
  }
  return static_cast<std::uint16_t>(label);
}

namespace {

template <class Label>
void write_as(const SyntheticImages& set, const std::string& out_path) {
  ImageSetWriter writer(out_path, set.samples, set.height, set.width, set.channels, set.classes);
  constexpr std::uint64_t piece_bytes = 4 << 20;
  const auto image_bytes = static_cast<std::uint64_t>(set.height * set.width * set.channels);
  const std::uint64_t piece = std::clamp<std::uint64_t>(piece_bytes / image_bytes, 1, set.samples);
  std::vector<std::uint8_t> images(piece * image_bytes);
  std::vector<Label> labels(piece);
  for (std::uint64_t done = 0; done < set.samples;) {
    const std::uint64_t count = std::min(piece, set.samples - done);
    for (std::uint64_t i = 0; i < count; ++i)
      labels[i] = static_cast<Label>(draw_synthetic_image(set, done + i, images.data() + i * image_bytes));
    if constexpr (sizeof(Label) == 1) {
      writer.append(images.data(), labels.data(), count);
    } else {
      writer.append_wide(images.data(), labels.data(), count);
    }
    done += count;
  }
  writer.finish();
}

}  // namespace

void write_synthetic_images(const SyntheticImages& set, const std::string& out_path) {
  MOTLEY_CHECK(set.samples >= 1 && set.classes >= 1 && set.classes <= 65536);
  if (set.classes > 256) {
    write_as<std::uint16_t>(set, out_path);
  } else {
    write_as<std::uint8_t>(set, out_path);
  }
}

}  // namespace motley::io
