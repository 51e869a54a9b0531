// exp for vectorised loops, within 2 units in the last place of float32. The C library's own cannot be
// vectorised without -ffast-math.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace motley {

// Cody and Waite's reduction: exp(x) = 2^k exp(r), |r| <= ln(2) / 2, and exp(r) by a polynomial (Cephes,
// expf).
inline float vector_exp(float x) {
  constexpr float lowest = -87.3f, highest = 88.72283f;  // the range of normal float32
  const float clamped = x < lowest ? lowest : (x > highest ? highest : x);
  constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, in the low bits
  const float shifted = clamped * 1.44269504089f + round;
  const float k = shifted - round;
  const float r = (clamped - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // In two factors, since 2^k itself overflows at the upper end. Unsigned, so that a NaN's bits overflow
  // nothing.
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(round);
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(exponent) >> 1);
  const float scale1 = std::bit_cast<float>((half + 127u) << 23);
  const float scale2 = std::bit_cast<float>((exponent - half + 127u) << 23);
  const float result = p * scale1 * scale2;
  const float bounded = x > highest ? std::numeric_limits<float>::infinity() : result;
  return x < lowest ? 0.0f : bounded;
}

}  // namespace motley
