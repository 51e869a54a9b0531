// float16 (IEEE binary16) on the host, converted with integer operations and one multiplication, without
// conditions, so that loops are vectorised on every processor.
#pragma once

#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "core/bfloat16.h"

namespace motley {

struct F16 {
  std::uint16_t bits;
};

template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::f16;
};

inline float to_float(F16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  // The exponent is 112 too small, also for subnormal numbers, after the bits are moved; infinity and NaN
  // keep the highest one.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = 0x7f800000u | (magnitude << 13);
  const std::uint32_t bits = magnitude >= 0x7c00u ? special : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(bits | sign);
}

// Rounded to nearest even; from 65520 on infinity.
template <>
inline F16 from_float<F16>(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  // Normal: the lower 13 bits are rounded off and the exponent made 112 smaller.
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  // Below 2^-14: adding 0.5 leaves multiples of 2^-24, the smallest float16, in the low bits.
  const float small = std::bit_cast<float>(magnitude) + 0.5f;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(small) - std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t not_a_number = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? not_a_number : result;
  return {static_cast<std::uint16_t>(result | sign)};
}

}  // namespace motley
