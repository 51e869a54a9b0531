// A keyed permutation of [0, n) that is computed, not stored: the shuffled order of an epoch costs no memory
// however large the data set is.
//
// Method: a balanced Feistel network over the smallest even number of bits that covers n, with Philox as the
// round function, and cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002,
// method 3): values that fall outside [0, n) are encrypted again. At most 4 tries on average.
#pragma once

#include <cstdint>

namespace motley {

class KeyedPermutation {
 public:
  // A permutation of [0, size) that depends on (seed, epoch, stream) alone; size >= 1 and < 2^62. Streams,
  // below 2^53, are for those who need several permutations of one epoch.
  KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint32_t epoch, std::uint64_t stream = 0);

  std::uint64_t size() const { return size_; }
  // Where position `index` of the shuffled order points; index < size.
  std::uint64_t operator()(std::uint64_t index) const;

 private:
  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  std::uint64_t seed_;
  std::uint32_t epoch_;
  std::uint64_t stream_;
  int half_bits_;
};

}  // namespace motley
