// bfloat16 on the host: the upper half of a float32.
#pragma once

#include <bit>
#include <cstdint>

#include "core/dtype.h"

namespace motley {

struct Bf16 {
  std::uint16_t bits;
};

template <>
struct DTypeOf<Bf16> {
  static constexpr DType value = DType::bf16;
};

inline float to_float(float x) {
  return x;
}
inline float to_float(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounded to nearest even. A NaN stays one: its upper bits are kept and made quiet.
template <class T>
T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline Bf16 from_float<Bf16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const std::uint32_t quiet = bits | 0x400000u;
  const std::uint32_t chosen = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  return {static_cast<std::uint16_t>(chosen >> 16)};
}

}  // namespace motley
