// Counted random numbers in vectors, and the rule by which they drop elements.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "core/philox.h"
#include "kernels/backend.h"

namespace motley {

inline constexpr int random_group =
    16;  // Philox calls made side by side: one vector register of 32-bit lanes
inline constexpr int random_group_words = 4 * random_group;  // random numbers they give

// words[i] = random_u32(key, slot, 4 * first_block + i) for i in [0, random_group_words).
inline void random_words(const RandomKey& key, std::uint32_t slot, std::uint32_t first_block,
                         std::uint32_t* words) {
#pragma omp simd
  for (int i = 0; i < random_group; ++i) {
    const Philox4 r = random_block(key, slot, first_block + static_cast<std::uint32_t>(i));
    words[4 * i] = r.x;
    words[4 * i + 1] = r.y;
    words[4 * i + 2] = r.z;
    words[4 * i + 3] = r.w;
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

struct DropRule {
  std::uint32_t threshold;  // a smaller random number drops the element
  float factor;             // of those that are kept

  float operator()(std::uint32_t word, float x) const { return word < threshold ? 0.0f : x * factor; }
};

inline DropRule drop_rule(const char* operation, const DropoutMask& mask) {
  if (!(mask.probability >= 0 && mask.probability < 1)) {
    fail(ExitCode::internal, "{}: the probability is {}, but it must be at least 0 and below 1", operation,
         mask.probability);
  }
  return {drop_threshold(mask.probability), static_cast<float>(1.0 / (1.0 - mask.probability))};
}

}  // namespace motley
