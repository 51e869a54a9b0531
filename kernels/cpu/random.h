// Counted random numbers in vectors.
#pragma once

#include <cstdint>

#include "core/philox.h"
#include "kernels/drop_rule.h"

namespace motley {

inline constexpr int random_group = 16;                      // Philox calls made side by side
inline constexpr int random_group_words = 4 * random_group;  // random numbers they give

// words[i] = random_u32(key, slot, 4 * first_block + i) for i in [0, random_group_words). Philox with every
// word in a 64-bit lane, where both halves of its products are at hand without a shuffle.
inline void random_words(const RandomKey& key, std::uint32_t slot, std::uint32_t first_block,
                         std::uint32_t* words) {
  constexpr std::uint64_t low = 0xffffffffu;  // what is above is left over from products
  std::uint64_t x[random_group], y[random_group], z[random_group], w[random_group];
#pragma omp simd
  for (int i = 0; i < random_group; ++i) {
    x[i] = first_block + static_cast<std::uint32_t>(i);
    y[i] = slot;
    z[i] = key.time;
    w[i] = key.purpose;
  }
  auto key0 = static_cast<std::uint32_t>(key.seed), key1 = static_cast<std::uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int i = 0; i < random_group; ++i) {
      const std::uint64_t product0 = (x[i] & low) * 0xD2511F53u, product1 = (z[i] & low) * 0xCD9E8D57u;
      x[i] = (product1 >> 32) ^ y[i] ^ key0;
      y[i] = product1;
      z[i] = (product0 >> 32) ^ w[i] ^ key1;
      w[i] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
#pragma omp simd
  for (int i = 0; i < random_group; ++i) {
    words[4 * i] = static_cast<std::uint32_t>(x[i]);
    words[4 * i + 1] = static_cast<std::uint32_t>(y[i]);
    words[4 * i + 2] = static_cast<std::uint32_t>(z[i]);
    words[4 * i + 3] = static_cast<std::uint32_t>(w[i]);
  }
}

// Room for random_run to write `count` numbers from any element on.
constexpr std::int64_t random_run_room(std::int64_t count) {
  return count + 3 + random_group_words;
}

// Numbers of elements first, first + 1, ...: `count` of them stand at the returned place within `words`,
// which has random_run_room(count) elements.
inline const std::uint32_t* random_run(const RandomKey& key, std::uint32_t slot, std::int64_t first,
                                       std::int64_t count, std::uint32_t* words) {
  const std::int64_t skipped = first % 4;
  auto block = static_cast<std::uint32_t>(first / 4);
  for (std::int64_t done = 0; done < skipped + count; done += random_group_words) {
    random_words(key, slot, block, words + done);
    block += random_group;
  }
  return words + skipped;
}

}  // namespace motley
