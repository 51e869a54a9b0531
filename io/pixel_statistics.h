// Mean and deviation of the pixels of each channel, for normalisation. Sums are whole numbers, so that the result does
// not depend on the order in which images come.
#pragma once

#include <cstdint>
#include <vector>

namespace motley::io {

class PixelStatistics {
 public:
  explicit PixelStatistics(std::int64_t channels);

  // bytes [pixels, channels].
  void add(const std::uint8_t* bytes, std::uint64_t pixels);

  std::int64_t channels() const { return static_cast<std::int64_t>(sums_.size()); }
  // Of pixels scaled to [0, 1], at least one of which was added; the deviation is that of the population, and 1 for a
  // channel whose pixels are all the same.
  std::vector<double> mean() const;
  std::vector<double> deviation() const;

 private:
  std::vector<std::uint64_t> sums_, squares_;
  std::uint64_t pixels_ = 0;
};

}  // namespace motley::io
