#include "core/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace motley {
namespace {

std::uint16_t float16_bits(float x) {
  return from_float<F16>(x).bits;
}

constexpr std::uint16_t infinity = 0x7c00, minus = 0x8000;

TEST(Float16, every_number_comes_back) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = to_float(F16{half});
    if ((half & 0x7fff) > infinity) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_GT(float16_bits(value) & 0x7fff, infinity) << bits;
    } else {
      EXPECT_EQ(float16_bits(value), half) << bits;
      EXPECT_EQ(std::signbit(value), (half & minus) != 0) << bits;
    }
  }
}

TEST(Float16, numbers_mean_what_the_standard_says) {
  EXPECT_EQ(to_float(F16{0x3c00}), 1.0f);
  EXPECT_EQ(to_float(F16{0xc580}), -5.5f);
  EXPECT_EQ(to_float(F16{0x7bff}), 65504.0f);
  EXPECT_EQ(to_float(F16{0x0001}), std::ldexp(1.0f, -24));
  EXPECT_EQ(to_float(F16{0x0400}), std::ldexp(1.0f, -14));
  EXPECT_EQ(to_float(F16{infinity}), std::numeric_limits<float>::infinity());
}

// Between any two neighbours: the middle goes to the even one, everything else to the nearer one.
TEST(Float16, rounds_to_nearest_even) {
  for (std::uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const float a = to_float(F16{low}), b = to_float(F16{high}), middle = (a + b) / 2;
    const std::uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(float16_bits(middle), even) << low;
    ASSERT_EQ(float16_bits(std::nextafter(middle, a)), low) << low;
    ASSERT_EQ(float16_bits(std::nextafter(middle, b)), high) << low;
    ASSERT_EQ(float16_bits(-middle), minus | even) << low;
  }
}

TEST(Float16, what_is_too_large_becomes_infinite) {
  EXPECT_EQ(float16_bits(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(float16_bits(65520.0f), infinity);
  EXPECT_EQ(float16_bits(-1e30f), minus | infinity);
  EXPECT_EQ(float16_bits(std::numeric_limits<float>::infinity()), infinity);
  EXPECT_EQ(float16_bits(std::numeric_limits<float>::denorm_min()), 0);
}

}  // namespace
}  // namespace motley
