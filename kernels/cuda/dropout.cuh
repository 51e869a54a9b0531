// Counted dropout of elements that a thread holds in registers: see DropoutMask.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/drop_rule.h"

namespace motley::cuda {

struct Dropout {
  RandomKey key;
  std::uint32_t first_slot;
  DropRule rule;

  // x[i] is element first + i of row `row`. Four of them are one block of random numbers: `first` is a
  // multiple of 4, unless there is one element only.
  template <int width>
  __device__ void apply(std::int64_t row, std::int64_t first, float (&x)[width]) const {
    if (rule.threshold == 0) return;  // nothing is dropped
    const std::uint32_t slot = first_slot + static_cast<std::uint32_t>(row);
    if constexpr (width == 1) {
      x[0] = rule(random_u32(key, slot, static_cast<std::uint32_t>(first)), x[0]);
    } else {
      static_assert(width % 4 == 0);
#pragma unroll
      for (int i = 0; i < width; i += 4) {
        const Philox4 words = random_block(key, slot, static_cast<std::uint32_t>((first + i) / 4));
        x[i] = rule(words.x, x[i]);
        x[i + 1] = rule(words.y, x[i + 1]);
        x[i + 2] = rule(words.z, x[i + 2]);
        x[i + 3] = rule(words.w, x[i + 3]);
      }
    }
  }
};

inline Dropout dropout_of(const char* operation, const DropoutMask& mask) {
  return {mask.key, mask.first_slot, drop_rule(operation, mask)};
}

}  // namespace motley::cuda
