// IEEE 754 half precision (binary16) on the host, as bits: what models are stored in, never computed in here.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace motley {

inline float float_from_float16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  constexpr std::uint32_t infinity = 0x7c00, smallest_normal = 0x0400, bias_shift = (127 - 15) << 23;
  if (magnitude >= infinity) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude - infinity) << 13);
  if (magnitude >= smallest_normal) return std::bit_cast<float>(sign | ((magnitude << 13) + bias_shift));
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return sign == 0 ? value : -value;
}

// Rounded to nearest even; from 65520 on that is infinity. A NaN stays one.
inline std::uint16_t float16_from_float(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  constexpr std::uint32_t infinity = 0x7f800000, too_large = 0x47800000, smallest_normal = 0x38800000;
  std::uint32_t half = 0x7c00;
  if (magnitude > infinity) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ffu);
  } else if (magnitude < smallest_normal) {
    half = static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f));
  } else if (magnitude < too_large) {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - ((127u - 15u) << 23)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace motley
