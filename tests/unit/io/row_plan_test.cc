#include "io/row_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace motley::io {
namespace {

TEST(RowPlan, sorts_and_keeps_where_each_row_is_wanted) {
  const std::vector<std::uint64_t> asked = {7, 3, 7, 0, 3, 3};
  const SortedRows sorted = sort_rows(asked);
  EXPECT_EQ(sorted.rows, (std::vector<std::uint64_t>{0, 3, 7}));
  EXPECT_EQ(sorted.places, (std::vector<std::uint64_t>{3, 1, 4, 5, 0, 2}));
  EXPECT_EQ(sorted.first, (std::vector<std::size_t>{0, 1, 4, 6}));
  EXPECT_TRUE(sort_rows({}).rows.empty());
}

TEST(RowPlan, merges_neighbours_and_rows_across_small_gaps) {
  const std::vector<std::uint64_t> rows = {0, 1, 3, 10, 11, 20};
  const auto exact = plan_passes(rows, 10, 0, 1 << 20);
  ASSERT_EQ(exact.size(), 1U);
  EXPECT_EQ(exact[0].blocks, (std::vector<Block>{{0, 20}, {30, 10}, {100, 20}, {200, 10}}));
  EXPECT_EQ(exact[0].landing, (std::vector<std::uint64_t>{0, 10, 20, 30, 40, 50}));
  EXPECT_EQ(exact[0].bytes, 60U);
  const auto sieved = plan_passes(rows, 10, 10, 1 << 20);
  ASSERT_EQ(sieved.size(), 1U);
  EXPECT_EQ(sieved[0].blocks, (std::vector<Block>{{0, 40}, {100, 20}, {200, 10}}));
  EXPECT_EQ(sieved[0].landing, (std::vector<std::uint64_t>{0, 10, 30, 40, 50, 60}));
  EXPECT_EQ(sieved[0].bytes, 70U);
}

TEST(RowPlan, passes_stay_within_their_bytes_unless_one_row_is_more) {
  const auto passes = plan_passes(std::vector<std::uint64_t>{0, 1, 2, 3, 4}, 10, 0, 25);
  ASSERT_EQ(passes.size(), 3U);
  EXPECT_EQ(passes[1].first_row, 2U);
  EXPECT_EQ(passes[1].blocks, (std::vector<Block>{{20, 20}}));
  EXPECT_EQ(passes[2].bytes, 10U);
  EXPECT_EQ(plan_passes(std::vector<std::uint64_t>{5, 6}, 100, 0, 25).size(), 2U);
  EXPECT_TRUE(plan_passes({}, 10, 0, 25).empty());
}

TEST(RowPlan, offsets_beyond_four_gigabytes_do_not_wrap) {
  const std::vector<std::uint64_t> rows = {1ULL << 40, (1ULL << 40) + 1};
  const auto passes = plan_passes(rows, 1000, 0, 1 << 20);
  ASSERT_EQ(passes.size(), 1U);
  EXPECT_EQ(passes[0].blocks, (std::vector<Block>{{1000ULL << 40, 2000}}));
}

// Against the definition: every place holds the bytes of the row asked for.
TEST(RowPlan, any_rows_with_any_gaps_and_passes_end_where_they_are_wanted) {
  std::mt19937_64 random(1);
  constexpr std::size_t row_bytes = 3;
  std::vector<std::byte> file(500 * row_bytes);
  for (auto& byte : file) byte = static_cast<std::byte>(random());
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> asked(random() % 200);
    for (auto& row : asked) row = random() % (1 + random() % 500);
    const SortedRows sorted = sort_rows(asked);
    const std::uint64_t gap = random() % 30, limit = 1 + random() % 400;
    std::vector<std::byte> out(asked.size() * row_bytes);
    std::size_t next_row = 0;
    for (const ReadPass& pass : plan_passes(sorted.rows, row_bytes, gap, limit)) {
      std::vector<std::byte> memory;
      for (const Block& block : pass.blocks) {
        const auto begin = file.begin() + static_cast<std::ptrdiff_t>(block.offset);
        memory.insert(memory.end(), begin, begin + static_cast<std::ptrdiff_t>(block.bytes));
      }
      ASSERT_EQ(memory.size(), pass.bytes);
      ASSERT_LE(pass.bytes, std::max<std::uint64_t>(limit, row_bytes));
      ASSERT_EQ(pass.first_row, next_row);
      next_row += pass.landing.size();
      for (std::size_t i = 0; i < pass.landing.size(); ++i) {
        sorted.scatter(pass.first_row + i, memory.data() + pass.landing[i], row_bytes, out.data());
      }
    }
    ASSERT_EQ(next_row, sorted.rows.size());
    for (std::size_t i = 0; i < asked.size(); ++i) {
      ASSERT_EQ(std::memcmp(&out[i * row_bytes], &file[asked[i] * row_bytes], row_bytes), 0);
    }
  }
}

}  // namespace
}  // namespace motley::io
