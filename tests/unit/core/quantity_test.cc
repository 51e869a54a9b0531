#include "core/quantity.h"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(Quantity, bytes_are_powers_of_1024) {
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("64K"), 65536);
  EXPECT_EQ(parse_bytes("1.5G"), 1.5 * 1024 * 1024 * 1024);
  EXPECT_EQ(parse_bytes("2T"), 0x1p41);
}

TEST(Quantity, rates_are_powers_of_1000) {
  EXPECT_EQ(parse_bytes_per_s("10G"), 1e10);
  EXPECT_EQ(parse_bytes_per_s("125M"), 1.25e8);
}

TEST(Quantity, seconds_need_a_unit) {
  EXPECT_EQ(parse_seconds("5ms"), 5e-3);
  EXPECT_EQ(parse_seconds("20us"), 2e-5);
  EXPECT_EQ(parse_seconds("50ms"), 0.05);
  EXPECT_EQ(parse_seconds("1e3us"), 1e-3);
  EXPECT_EQ(parse_seconds("1.5s"), 1.5);
  EXPECT_FALSE(parse_seconds("5"));
}

TEST(Quantity, durations_are_parts_from_days_to_seconds) {
  EXPECT_EQ(parse_duration("11h50m"), 42600);
  EXPECT_EQ(parse_duration("1d12h30m5s"), 131405);
  EXPECT_EQ(parse_duration("90s"), 90);
  EXPECT_EQ(parse_duration("45"), 45);
  EXPECT_EQ(parse_duration("0"), 0);
  EXPECT_EQ(parse_duration("120m"), 7200);
  for (const char* text :
       {"", "h", "50m11h", "1h1h", "1h30", "1.5h", "-1h", "1 h", "1w", "1H", "99999999999s", "1hh", "1d "})
    EXPECT_FALSE(parse_duration(text)) << text;
}

TEST(Quantity, is_nothing_for_anything_else) {
  for (const char* text :
       {"", "G", "-1G", "1GB", "1 G", "1g", "inf", "nan", "1e999", "1e308T", "0x10", "1e3", "1e3G", "1.5"})
    EXPECT_FALSE(parse_bytes(text)) << text;
}

TEST(Quantity, seconds_are_shown_with_three_digits) {
  EXPECT_EQ(seconds_text(0), "0 us");
  EXPECT_EQ(seconds_text(2e-5), "20.0 us");
  EXPECT_EQ(seconds_text(0.0871), "87.1 ms");
  EXPECT_EQ(seconds_text(0.123456), "123 ms");
  EXPECT_EQ(seconds_text(1.25), "1.25 s");
  EXPECT_EQ(seconds_text(12345), "12345 s");
}

}  // namespace
}  // namespace motley
