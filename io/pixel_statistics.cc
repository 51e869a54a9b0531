#include "io/pixel_statistics.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace motley::io {
namespace {

// Sums of this many bytes squared stay within 32 bits, of which a vector has twice as many lanes.
constexpr std::uint64_t block_pixels = 65536;

template <std::int64_t channels>
void add_block(const std::uint8_t* bytes, std::uint64_t pixels, std::uint64_t* sums, std::uint64_t* squares) {
  for (std::int64_t c = 0; c < channels; ++c) {
    std::uint32_t sum = 0, square = 0;
    for (std::uint64_t p = 0; p < pixels; ++p) {
      const std::uint32_t value = bytes[p * channels + static_cast<std::uint64_t>(c)];
      sum += value;
      square += value * value;
    }
    sums[c] += sum;
    squares[c] += square;
  }
}

}  // namespace

PixelStatistics::PixelStatistics(std::int64_t channels)
    : sums_(static_cast<std::size_t>(channels)), squares_(static_cast<std::size_t>(channels)) {
  MOTLEY_CHECK(channels >= 1);
}

void PixelStatistics::add(const std::uint8_t* bytes, std::uint64_t pixels) {
  const std::size_t channels = sums_.size();
  pixels_ += pixels;
  while (pixels > 0) {
    const std::uint64_t block = std::min(pixels, block_pixels);
    if (channels == 1) {
      add_block<1>(bytes, block, sums_.data(), squares_.data());
    } else if (channels == 3) {
      add_block<3>(bytes, block, sums_.data(), squares_.data());
    } else {
      for (std::uint64_t i = 0; i < block * channels; ++i) {
        const std::uint64_t value = bytes[i];
        sums_[i % channels] += value;
        squares_[i % channels] += value * value;
      }
    }
    bytes += block * channels;
    pixels -= block;
  }
}

std::vector<double> PixelStatistics::mean() const {
  MOTLEY_CHECK(pixels_ > 0);
  std::vector<double> means;
  for (const std::uint64_t sum : sums_)
    means.push_back(static_cast<double>(sum) / static_cast<double>(pixels_) / 255);
  return means;
}

std::vector<double> PixelStatistics::deviation() const {
  MOTLEY_CHECK(pixels_ > 0);
  std::vector<double> deviations;
  for (std::size_t c = 0; c < sums_.size(); ++c) {
    const double mean = static_cast<double>(sums_[c]) / static_cast<double>(pixels_);
    const double variance = static_cast<double>(squares_[c]) / static_cast<double>(pixels_) - mean * mean;
    // What is left by rounding of pixels that are all the same.
    constexpr double rounding = 1e-10;
    deviations.push_back(variance > rounding ? std::sqrt(variance) / 255 : 1);
  }
  return deviations;
}

}  // namespace motley::io
