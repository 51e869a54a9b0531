#include "core/philox.h"

#include <gtest/gtest.h>

namespace motley {
namespace {

struct KnownAnswer {
  Philox4 counter;
  std::uint32_t key0, key1;
  Philox4 answer;
};

// philox4x32 10 rounds, from kat_vectors of the Random123 distribution by the method's authors.
constexpr KnownAnswer known_answers[] = {
    {{0x00000000, 0x00000000, 0x00000000, 0x00000000},
     0x00000000,
     0x00000000,
     {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     0xffffffff,
     0xffffffff,
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     0xa4093822,
     0x299f31d0,
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, gives_the_published_known_answers) {
  for (const KnownAnswer& known : known_answers) {
    const Philox4 got = philox4x32_10(known.counter, known.key0, known.key1);
    EXPECT_EQ(got.x, known.answer.x);
    EXPECT_EQ(got.y, known.answer.y);
    EXPECT_EQ(got.z, known.answer.z);
    EXPECT_EQ(got.w, known.answer.w);
  }
}

TEST(Philox, an_element_is_its_place_in_its_block) {
  const RandomKey key(0x123456789abcdefULL, Purpose::dropout, 7, 42);
  const Philox4 block = random_block(key, 5, 3);
  EXPECT_EQ(random_u32(key, 5, 12), block.x);
  EXPECT_EQ(random_u32(key, 5, 13), block.y);
  EXPECT_EQ(random_u32(key, 5, 14), block.z);
  EXPECT_EQ(random_u32(key, 5, 15), block.w);
}

TEST(Philox, every_part_of_the_key_changes_the_numbers) {
  const RandomKey key(1, Purpose::dropout, 0, 0);
  const std::uint32_t base = random_u32(key, 0, 0);
  EXPECT_NE(random_u32(RandomKey(2, Purpose::dropout, 0, 0), 0, 0), base);
  EXPECT_NE(random_u32(RandomKey(1ULL << 32 | 1, Purpose::dropout, 0, 0), 0, 0), base);
  EXPECT_NE(random_u32(RandomKey(1, Purpose::shuffle, 0, 0), 0, 0), base);
  EXPECT_NE(random_u32(RandomKey(1, Purpose::dropout, 1, 0), 0, 0), base);
  EXPECT_NE(random_u32(RandomKey(1, Purpose::dropout, 0, 1), 0, 0), base);
  EXPECT_NE(random_u32(key, 1, 0), base);
  EXPECT_NE(random_u32(key, 0, 1), base);
}

TEST(Philox, unit_floats_stay_below_one_and_are_uniform_in_the_mean) {
  EXPECT_LT(to_unit_float(0xffffffffu), 1.0f);
  EXPECT_EQ(to_unit_float(0), 0.0f);
  const RandomKey key(9, Purpose::initialization, 0, 0);
  double sum = 0;
  constexpr std::uint32_t count = 100000;
  for (std::uint32_t i = 0; i < count; ++i) sum += to_unit_float(random_u32(key, 0, i));
  // Five standard errors of the mean of a uniform distribution: 5 * sqrt(1 / 12 / count).
  EXPECT_NEAR(sum / count, 0.5, 5 * 0.2887 / 316.2);
}

}  // namespace
}  // namespace motley
