// The counted random numbers of one slot, one after the other: for work that does not know beforehand how
// many it needs. It begins at element 0 each time, so what it gives depends on (key, slot) alone (law 3).
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace motley::io {

class Draws {
 public:
  Draws(const RandomKey& key, std::uint32_t slot) : key_(key), slot_(slot) {}

  std::uint32_t next() {
    if (element_ % 4 == 0) block_ = random_block(key_, slot_, element_ / 4);
    const std::uint32_t words[] = {block_.x, block_.y, block_.z, block_.w};
    return words[element_++ % 4];
  }

  // Uniform in [0, n), n >= 1, by multiplication: no value is likelier than another by more than n / 2^32.
  std::uint32_t below(std::uint32_t n) {
    return static_cast<std::uint32_t>((std::uint64_t{next()} * n) >> 32);
  }

  // Uniform in [first, last].
  std::uint32_t between(std::uint32_t first, std::uint32_t last) { return first + below(last - first + 1); }

  bool with_probability(double p) { return static_cast<double>(next()) < p * 4294967296.0; }

 private:
  RandomKey key_;
  std::uint32_t slot_;
  std::uint32_t element_ = 0;
  Philox4 block_{};
};

}  // namespace motley::io
