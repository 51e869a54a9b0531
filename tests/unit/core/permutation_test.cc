#include "core/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace motley {
namespace {

TEST(KeyedPermutation, visits_every_index_once_for_every_size) {
  for (std::uint64_t size :
       {1ULL, 2ULL, 3ULL, 4ULL, 5ULL, 7ULL, 16ULL, 17ULL, 63ULL, 64ULL, 65ULL, 1000ULL, 60000ULL}) {
    const KeyedPermutation order(size, 1, 1);
    std::vector<bool> seen(size, false);
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t value = order(i);
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << "size " << size << ", index " << i;
      seen[value] = true;
    }
  }
}

TEST(KeyedPermutation, depends_on_seed_and_epoch_alone) {
  const KeyedPermutation a(1000, 1, 1), same(1000, 1, 1), other_seed(1000, 2, 1), other_epoch(1000, 1, 2);
  int equal_seed = 0, equal_epoch = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(a(i), same(i));
    equal_seed += a(i) == other_seed(i);
    equal_epoch += a(i) == other_epoch(i);
  }
  // Two independent permutations agree in one place on average (Poisson); 10 would be a one in a million
  // event.
  EXPECT_LT(equal_seed, 10);
  EXPECT_LT(equal_epoch, 10);
}

TEST(KeyedPermutation, streams_are_permutations_of_their_own) {
  const KeyedPermutation first(1000, 1, 1);
  for (const std::uint64_t stream :
       {std::uint64_t{1}, std::uint64_t{1} << 31, std::uint64_t{1} << 32, (std::uint64_t{1} << 53) - 1}) {
    const KeyedPermutation other(1000, 1, 1, stream);
    std::set<std::uint64_t> seen;
    int equal = 0;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      seen.insert(other(i));
      equal += other(i) == first(i);
    }
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_LT(equal, 10) << "stream " << stream;
  }
}

// Where each of 8 items lands, over 4000 epochs: a chi-squared test of uniformity per item.
TEST(KeyedPermutation, sends_items_everywhere_equally_often) {
  constexpr std::uint64_t size = 8;
  constexpr int epochs = 4000;
  std::vector<std::vector<int>> count(size, std::vector<int>(size, 0));
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const KeyedPermutation order(size, 77, static_cast<std::uint32_t>(epoch));
    for (std::uint64_t i = 0; i < size; ++i) ++count[i][order(i)];
  }
  for (const auto& row : count) {
    double chi_squared = 0;
    for (const int seen : row) chi_squared += std::pow(seen - epochs / 8.0, 2) / (epochs / 8.0);
    EXPECT_LT(chi_squared, 33.0);  // 7 degrees of freedom: exceeded with probability 3e-5
  }
}

TEST(KeyedPermutation, works_on_domains_far_beyond_memory) {
  const std::uint64_t size = (1ULL << 45) + 12345;
  const KeyedPermutation order(size, 3, 9);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const std::uint64_t value = order(i);
    ASSERT_LT(value, size);
    EXPECT_TRUE(seen.insert(value).second);
  }
}

}  // namespace
}  // namespace motley
