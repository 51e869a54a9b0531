#include "balance/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "core/error.h"
#include "support/usage_sentence.h"

namespace motley::balance {
namespace {

using Shares = std::vector<std::int64_t>;

std::int64_t sum_of(const Shares& shares) {
  return std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
}

// The Hamilton method as a textbook has it, for whole-number weights: exact, and quadratic.
Shares hamilton(std::int64_t batch, const std::vector<std::int64_t>& weights) {
  const std::int64_t total = sum_of(weights);
  Shares shares, remainders;
  for (const std::int64_t weight : weights) {
    shares.push_back(batch * weight / total);
    remainders.push_back(batch * weight % total);
  }
  for (std::int64_t left = batch - sum_of(shares); left > 0; --left) {
    const auto largest = std::max_element(remainders.begin(), remainders.end());  // the first of equal ones
    ++shares[static_cast<std::size_t>(largest - remainders.begin())];
    *largest = -1;
  }
  return shares;
}

TEST(ProportionalShares, equal_the_textbook_method_for_whole_weights) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int64_t> whole(1 + random() % 9);
    for (auto& weight : whole) weight = static_cast<std::int64_t>(random() % (round % 2 ? 5 : 1000));
    if (sum_of(whole) == 0) whole.back() = 1;
    const auto batch = static_cast<std::int64_t>(random() % 300);
    // The same proportions, also as fractions and as numbers near both ends of the range of double.
    for (const double unit : {1.0, 0.125, std::ldexp(1.0, 1000), std::ldexp(1.0, -1000)}) {
      std::vector<double> weights;
      for (const auto weight : whole) weights.push_back(static_cast<double>(weight) * unit);
      ASSERT_EQ(proportional_shares(batch, weights), hamilton(batch, whole)) << "round " << round;
    }
  }
}

TEST(ProportionalShares, sum_to_the_batch_and_are_within_one_of_the_quota_and_in_the_order_of_the_weights) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> exponent(-12, 12);
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> weights(1 + random() % 40);
    for (auto& weight : weights) weight = random() % 5 == 0 ? 0 : std::pow(10.0, exponent(random));
    weights[random() % weights.size()] = 1;
    const auto batch = static_cast<std::int64_t>(random() % (round % 2 ? 50 : 5'000'000));
    const Shares shares = proportional_shares(batch, weights);
    ASSERT_EQ(sum_of(shares), batch);
    const long double total = std::accumulate(weights.begin(), weights.end(), 0.0L);
    for (std::size_t r = 0; r < weights.size(); ++r) {
      const long double quota = static_cast<long double>(batch) * weights[r] / total;
      ASSERT_LT(std::fabs(static_cast<long double>(shares[r]) - quota), 1 + 1e-6L);
      ASSERT_TRUE(weights[r] > 0 || shares[r] == 0);
      for (std::size_t s = 0; s < weights.size(); ++s) {
        ASSERT_TRUE(weights[r] <= weights[s] || shares[r] >= shares[s]);
      }
    }
  }
}

TEST(ProportionalShares, ties_go_to_the_lower_rank) {
  EXPECT_EQ(proportional_shares(5, std::vector<double>{1, 1, 1}), (Shares{2, 2, 1}));
  EXPECT_EQ(proportional_shares(1, std::vector<double>{0, 0.1, 0.1, 0.1}), (Shares{0, 1, 0, 0}));
  EXPECT_EQ(proportional_shares(8, std::vector<double>{0.3, 0.3, 0.3}), (Shares{3, 3, 2}));
}

TEST(ProportionalShares, are_exact_for_huge_ratios_and_batches) {
  EXPECT_EQ(proportional_shares(64, std::vector<double>{1e-12, 1}), (Shares{0, 64}));
  EXPECT_EQ(proportional_shares(64, std::vector<double>{1, 1e-300, 1e300}), (Shares{0, 0, 64}));
  EXPECT_EQ(proportional_shares(2'000'000'000'000, std::vector<double>{std::ldexp(1.0, -40), 1}),
            (Shares{2, 1'999'999'999'998}));
  EXPECT_EQ(proportional_shares(0, std::vector<double>{1, 2}), (Shares{0, 0}));
  const double most = std::numeric_limits<double>::max();
  EXPECT_EQ(proportional_shares(3, std::vector<double>{most, most, most}), (Shares{1, 1, 1}));
  const double least = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(proportional_shares(6, std::vector<double>{least, 2 * least}), (Shares{2, 4}));
  const auto huge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(sum_of(proportional_shares(huge, std::vector<double>{0.1, 0.2, 0.7})), huge);
}

TEST(ProportionalShares, of_a_hundred_thousand_ranks_add_up) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> weight(0.1, 10);
  std::vector<double> weights(100'000);
  std::generate(weights.begin(), weights.end(), [&] { return weight(random); });
  EXPECT_EQ(sum_of(proportional_shares(1 << 20, weights)), 1 << 20);
}

TEST(ProportionalShares, refuse_weights_that_mean_nothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(test::usage_sentence([] {
              proportional_shares(4, std::vector<double>{1, -1});
            }),
            "the weight of rank 1 is -1: weights are finite numbers and not negative");
  for (const double bad : {nan, infinity, -infinity}) {
    EXPECT_NE(test::usage_sentence([&] { proportional_shares(4, std::vector<double>{bad}); }), "no error");
  }
  EXPECT_EQ(test::usage_sentence([] {
              proportional_shares(4, std::vector<double>{0, 0});
            }),
            "all weights are zero: at least one rank needs a share of the batch");
  EXPECT_NE(test::usage_sentence([] { proportional_shares(4, {}); }), "no error");
}

TEST(ShareOffsets, are_the_slots_before_each_rank) {
  EXPECT_EQ(share_offsets(Shares{3, 0, 2, 1}), (Shares{0, 3, 3, 5}));
  EXPECT_EQ(share_offsets(Shares{}), Shares{});
}

TEST(MicroBatches, are_as_few_as_the_cap_allows_as_equal_as_possible_and_larger_first) {
  for (std::int64_t n = 0; n <= 60; ++n) {
    for (std::int64_t cap = 1; cap <= 65; ++cap) {
      const Shares sizes = micro_batches(n, cap);
      ASSERT_EQ(sum_of(sizes), n);
      std::int64_t fewest = 0;
      while (fewest * cap < n) ++fewest;
      ASSERT_EQ(static_cast<std::int64_t>(sizes.size()), fewest);
      if (n == 0) continue;
      ASSERT_TRUE(std::is_sorted(sizes.rbegin(), sizes.rend()));
      ASSERT_LE(sizes.front(), cap);
      ASSERT_LE(sizes.front() - sizes.back(), 1);
    }
  }
  EXPECT_EQ(micro_batches(10, 4), (Shares{4, 3, 3}));
  EXPECT_EQ(micro_batches(5, std::numeric_limits<std::int64_t>::max()), (Shares{5}));
}

TEST(ParseWeights, reads_one_number_per_rank) {
  EXPECT_EQ(parse_weights("1,1,2,4", 4), (std::vector<double>{1, 1, 2, 4}));
  EXPECT_EQ(parse_weights(" 0.5, 1e3 ,0", 3), (std::vector<double>{0.5, 1000, 0}));
}

TEST(ParseWeights, says_what_is_wrong) {
  EXPECT_EQ(test::usage_sentence([] { parse_weights("1,2", 3); }),
            "--weights 1,2 has 2 numbers for 3 ranks; expected one per rank");
  EXPECT_EQ(test::usage_sentence([] { parse_weights("1", 2); }),
            "--weights 1 has 1 number for 2 ranks; expected one per rank");
  EXPECT_EQ(test::usage_sentence([] { parse_weights("1,x", 2); }),
            "--weights 1,x: \"x\" is not a number; expected one number per rank, like 1,1,2.5");
  EXPECT_EQ(test::usage_sentence([] { parse_weights("1,-2", 2); }),
            "--weights 1,-2: \"-2\" is negative; the least weight is 0");
  EXPECT_EQ(test::usage_sentence([] { parse_weights("0,0", 2); }),
            "--weights 0,0: all weights are zero; at least one rank needs a share of the batch");
  for (const char* text :
       {"", ",", "1,", ",1", "1,,2", "1;2", "1 2", "nan,1", "inf,1", "1e999,1", "0x1,1", "1,2 3"}) {
    EXPECT_NE(test::usage_sentence([&] { parse_weights(text, 2); }), "no error") << text;
  }
}

// Caps that bind nowhere change nothing; otherwise every share that is not full is what a division of the rest among the
// ranks that are not full gives it.
TEST(CappedShares, are_proportional_among_the_ranks_that_are_not_full) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    std::vector<double> weights(1 + random() % 7);
    Shares caps;
    for (double& weight : weights) {
      weight = static_cast<double>(random() % 6);
      caps.push_back(static_cast<std::int64_t>(random() % 40));
    }
    const std::int64_t room = sum_of(caps);
    const auto batch = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room + 1));
    const Shares shares = capped_shares(batch, weights, caps);
    ASSERT_EQ(sum_of(shares), batch);
    std::vector<double> open(weights.size(), 0.0);
    Shares expected(weights.size(), 0);
    std::int64_t rest = batch, weighted_room = 0;
    for (std::size_t r = 0; r < caps.size(); ++r) {
      ASSERT_GE(shares[r], 0);
      ASSERT_LE(shares[r], caps[r]);
      if (weights[r] > 0) weighted_room += caps[r];
      if (shares[r] < caps[r]) {
        open[r] = weights[r];
      } else {
        expected[r] = caps[r];
        rest -= caps[r];
      }
    }
    if (batch > weighted_room) continue;  // ranks of weight zero help out
    for (std::size_t r = 0; r < caps.size(); ++r) {
      ASSERT_TRUE(weights[r] > 0 || shares[r] == 0);
    }
    if (std::all_of(open.begin(), open.end(), [](double weight) { return weight == 0; })) continue;
    const Shares others = proportional_shares(rest, open);
    for (std::size_t r = 0; r < caps.size(); ++r)
      ASSERT_NEAR(shares[r], expected[r] + others[r], 1) << "round " << round;
  }
}

TEST(CappedShares, without_room_get_a_sentence) {
  const std::vector<double> weights = {1, 0, 2};
  EXPECT_EQ(capped_shares(9, weights, Shares{2, 4, 3}), (Shares{2, 4, 3}));
  EXPECT_EQ(capped_shares(12, weights, Shares{100, 100, 100}), (Shares{4, 0, 8}));
  EXPECT_EQ(capped_shares(12, weights, Shares{100, 100, 5}), (Shares{7, 0, 5}));
  EXPECT_EQ(test::usage_sentence([&] {
              capped_shares(10, weights, Shares{2, 4, 3});
            }),
            "the ranks may have 9 samples at most; the batch has 10");
}

}  // namespace
}  // namespace motley::balance
