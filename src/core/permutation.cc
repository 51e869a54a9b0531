#include "core/permutation.h"

#include "core/error.h"
#include "core/philox.h"

namespace motley {
namespace {

// Four rounds make a pseudorandom permutation (Luby-Rackoff); two more because the halves are short for small
// n.
constexpr std::uint32_t feistel_rounds = 6;

}  // namespace

KeyedPermutation::KeyedPermutation(std::uint64_t size, std::uint64_t seed, std::uint32_t epoch,
                                   std::uint64_t stream)
    : size_(size), seed_(seed), epoch_(epoch), stream_(stream), half_bits_(1) {
  MOTLEY_CHECK(size >= 1 && size < (std::uint64_t{1} << 62) && stream < (std::uint64_t{1} << 53));
  while ((std::uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
}

std::uint64_t KeyedPermutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (std::uint32_t round = 0; round < feistel_rounds; ++round) {
    // The round takes 3 of the 24 bits that a key has for an index; the stream has the rest and the slot.
    const RandomKey key(seed_, Purpose::shuffle, round | static_cast<std::uint32_t>(stream_ >> 32) << 3,
                        epoch_);
    const Philox4 mixed =
        random_block(key, static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(right));
    const std::uint64_t next = left ^ (mixed.x & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t KeyedPermutation::operator()(std::uint64_t index) const {
  MOTLEY_CHECK(index < size_);
  std::uint64_t value = index;
  do {
    value = encrypt(value);
  } while (value >= size_);
  return value;
}

}  // namespace motley
