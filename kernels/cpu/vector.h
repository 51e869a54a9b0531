// Sixteen float32 numbers as GCC's and Clang's vector type: one register of AVX-512, several of narrower processors.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/bfloat16.h"

namespace motley {

constexpr int lanes = 16;
using Vec = float __attribute__((vector_size(4 * lanes)));

inline Vec load(const float* from) {
  Vec result;
  std::memcpy(&result, from, sizeof result);
  return result;
}
inline Vec load(const Bf16* from) {
  using Narrow = std::uint16_t __attribute__((vector_size(2 * lanes)));
  using Wide = std::uint32_t __attribute__((vector_size(4 * lanes)));
  Narrow bits;
  std::memcpy(&bits, from, sizeof bits);
  return reinterpret_cast<Vec>(__builtin_convertvector(bits, Wide) << 16);
}

inline void store(float* to, const Vec& value) {
  std::memcpy(to, &value, sizeof value);
}
inline void store(Bf16* to, const Vec& value) {
#pragma omp simd
  for (int i = 0; i < lanes; ++i) to[i] = from_float<Bf16>(value[i]);
}

inline Vec zero_vec() {
  return Vec{};
}
// `value` in every lane.
inline Vec all_lanes(float value) {
  return value - Vec{};
}

}  // namespace motley
