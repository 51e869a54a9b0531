#include "balance/solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "core/error.h"
#include "support/division.h"
#include "support/usage_sentence.h"

namespace motley::balance {
namespace {

using Costs = std::vector<RankCost>;
using Shares = std::vector<std::int64_t>;
constexpr std::int64_t no_cap = std::numeric_limits<std::int64_t>::max();

std::int64_t sum_of_caps(const Costs& costs, std::int64_t batch) {
  std::int64_t sum = 0;
  for (const RankCost& cost : costs) sum += std::min(cost.cap, batch);
  return sum;
}

// The fastest of all divisions of `batch` among the ranks from `first` on, by trying every one.
double fastest_of_all(std::int64_t batch, const Costs& costs, std::size_t first = 0) {
  if (first == costs.size()) return batch == 0 ? 0 : std::numeric_limits<double>::infinity();
  double fastest = std::numeric_limits<double>::infinity();
  for (std::int64_t share = 0; share <= std::min(batch, costs[first].cap); ++share) {
    const double rest = fastest_of_all(batch - share, costs, first + 1);
    fastest = std::min(fastest, std::max(seconds_for(costs[first], share), rest));
  }
  return fastest;
}

// Few different numbers, all exact in binary, so that many divisions are equally fast.
RankCost cost_with_ties(std::mt19937_64& random) {
  RankCost cost{0.25 * static_cast<double>(random() % 4), 0.25 * static_cast<double>(random() % 4)};
  if (random() % 3 == 0) cost.cap = static_cast<std::int64_t>(random() % 5);
  return cost;
}

// Any numbers, over many powers of ten.
RankCost cost_of_any_size(std::mt19937_64& random) {
  std::uniform_real_distribution<double> exponent(-9, 2);
  RankCost cost{std::pow(10, exponent(random)), std::pow(10, exponent(random))};
  if (random() % 4 == 0) cost.fixed_s = 0;
  if (random() % 8 == 0) cost.sample_s = 0;
  if (random() % 4 == 0) cost.cap = static_cast<std::int64_t>(random() % 5);
  return cost;
}

struct Case {
  std::int64_t batch;
  Costs costs;
};

Case small_case(std::mt19937_64& random, int round) {
  Case it{static_cast<std::int64_t>(random() % 8), Costs(1 + random() % 4)};
  do {
    for (RankCost& cost : it.costs) cost = round % 2 ? cost_with_ties(random) : cost_of_any_size(random);
  } while (sum_of_caps(it.costs, it.batch) < it.batch);
  return it;
}

TEST(SecondsFor, are_a_fixed_part_and_a_part_for_every_sample_but_nothing_without_a_sample) {
  EXPECT_EQ(seconds_for({0.5, 0.25}, 0), 0);
  EXPECT_EQ(seconds_for({0.5, 0.25}, 1), 0.75);
  EXPECT_EQ(seconds_for({0.5, 0.25}, 6), 2);
  EXPECT_EQ(seconds_for({0, 0}, 6), 0);
}

TEST(SecondsFor, never_fall_as_the_share_grows) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 1000; ++round) {
    const RankCost cost = cost_of_any_size(random);
    const auto from = static_cast<std::int64_t>(random() >> (2 + random() % 61));
    for (std::int64_t n = from; n < from + 50; ++n) ASSERT_LE(seconds_for(cost, n), seconds_for(cost, n + 1));
  }
}

TEST(MinMaxShares, are_the_fastest_of_all_divisions) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 6000; ++round) {
    const Case it = small_case(random, round);
    const Division division = min_max_shares(it.batch, it.costs);
    ASSERT_EQ(division.slowest_s, fastest_of_all(it.batch, it.costs)) << "round " << round;
  }
}

TEST(MinMaxShares, are_those_of_the_greedy_hand_out) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 6000; ++round) {
    const Case it = small_case(random, round);
    const Division division = min_max_shares(it.batch, it.costs);
    ASSERT_EQ(division.shares, test::greedy_shares(it.batch, it.costs)) << "round " << round;
    ASSERT_EQ(test::fault_of(division, it.batch, it.costs), "") << "round " << round;
  }
}

// Above, most samples are handed out one by one; here, most are given by water-filling.
TEST(MinMaxShares, are_those_of_the_greedy_hand_out_for_batches_much_larger_than_the_ranks) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 3000; ++round) {
    Case it{static_cast<std::int64_t>(random() % 2000), Costs(1 + random() % 12)};
    for (RankCost& cost : it.costs) {
      cost = round % 2 ? cost_with_ties(random) : cost_of_any_size(random);
      if (cost.cap < no_cap) cost.cap *= 100;
    }
    it.costs[random() % it.costs.size()].cap = no_cap;
    const Division division = min_max_shares(it.batch, it.costs);
    ASSERT_EQ(division.shares, test::greedy_shares(it.batch, it.costs)) << "round " << round;
    ASSERT_EQ(test::fault_of(division, it.batch, it.costs), "") << "round " << round;
  }
}

TEST(MinMaxShares, of_ranks_of_known_speed_are_what_one_would_give_by_hand) {
  EXPECT_EQ(min_max_shares(60, Costs{{0, 1}, {0, 2}, {0, 3}}).shares, (Shares{33, 16, 11}));
  EXPECT_EQ(min_max_shares(7, Costs{{0, 1}, {0, 1}, {0, 1}}).shares, (Shares{3, 2, 2}));
  // A rank whose fixed part is longer than the others need for everything gets nothing.
  EXPECT_EQ(min_max_shares(8, Costs{{0, 1}, {0, 1}, {10, 0.1}}).shares, (Shares{4, 4, 0}));
  EXPECT_EQ(min_max_shares(8, Costs{{0, 1, 2}, {0, 1}, {0, 1, 0}}).shares, (Shares{2, 6, 0}));
}

TEST(MinMaxShares, give_ties_to_the_lower_rank) {
  EXPECT_EQ(min_max_shares(1, Costs{{0, 2}, {0, 1}, {0, 1}}).shares, (Shares{0, 1, 0}));
  EXPECT_EQ(min_max_shares(5, Costs{{1, 0}, {1, 0}}).shares, (Shares{5, 0}));
  EXPECT_EQ(min_max_shares(5, Costs{{1, 0, 2}, {1, 0}}).shares, (Shares{2, 3}));
  EXPECT_EQ(min_max_shares(1'000'000'001, Costs{{0, 1}, {0, 1}}).shares, (Shares{500'000'001, 500'000'000}));
}

TEST(MinMaxShares, of_an_empty_batch_are_none_and_take_no_time) {
  const Division division = min_max_shares(0, Costs{{1, 1}, {0, 0}, {0, 1, 0}});
  EXPECT_EQ(division.shares, (Shares{0, 0, 0}));
  EXPECT_EQ(division.slowest_s, 0);
  EXPECT_EQ(ideal_seconds(0, Costs{{1, 1}}), 0);
  EXPECT_TRUE(min_max_shares(0, Costs{}).shares.empty());
}

TEST(MinMaxShares, fill_all_caps_when_the_batch_needs_them) {
  const Division division = min_max_shares(10, Costs{{5, 1, 3}, {0, 1, 0}, {0, 0.001, 7}});
  EXPECT_EQ(division.shares, (Shares{3, 0, 7}));
  EXPECT_EQ(division.slowest_s, 8);
}

TEST(MinMaxShares, are_exact_for_huge_batches) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    Costs costs(5);
    for (RankCost& cost : costs) cost = cost_of_any_size(random);
    if (round % 2) costs[0].cap = 123'456'789;
    costs[4].cap = no_cap;
    for (const std::int64_t batch :
         {std::int64_t{1'000'000'000}, std::int64_t{1} << 53, no_cap - 1, no_cap}) {
      ASSERT_EQ(test::fault_of(min_max_shares(batch, costs), batch, costs), "") << "round " << round;
    }
  }
}

TEST(MinMaxShares, are_exact_where_a_sample_is_lost_in_the_rounding_of_the_fixed_part) {
  // 4503 samples and more take as long as one does, in double precision.
  const Costs costs{{1, 1e-20}, {1, 3e-20, 1'000'000'000}, {1, 0, 7}, {1 + 1e-15, 0, 1'000'000'000'000}};
  for (const std::int64_t batch : {std::int64_t{100}, std::int64_t{1'000'000}, std::int64_t{1} << 60}) {
    EXPECT_EQ(test::fault_of(min_max_shares(batch, costs), batch, costs), "") << batch;
  }
  EXPECT_EQ(min_max_shares(1'000'000, costs).shares, test::greedy_shares(1'000'000, costs));
}

TEST(MinMaxShares, are_exact_at_both_ends_of_the_range_of_double) {
  const double least = std::numeric_limits<double>::denorm_min(), most = std::numeric_limits<double>::max();
  for (const Costs& costs : {Costs{{0, least}, {0, 3 * least}}, Costs{{0, most}, {most, most / 8}},
                             Costs{{0, least}, {0, most}}, Costs{{most, 0}, {0, 0, 10}, {least, 1}},
                             Costs{{-0.0, -0.0, 4}, {0, -0.0, 3}, {-0.0, 1}}, Costs{{-0.0, -0.0}}}) {
    for (const std::int64_t batch : {1, 4, 50, 1000, 1'000'000'000}) {
      EXPECT_EQ(test::fault_of(min_max_shares(batch, costs), batch, costs), "") << batch;
    }
    EXPECT_EQ(min_max_shares(1000, costs).shares, test::greedy_shares(1000, costs));
  }
}

TEST(MinMaxShares, of_a_hundred_thousand_ranks_are_exact) {
  std::mt19937_64 random(6);
  Costs costs(100'000);
  for (RankCost& cost : costs) cost = cost_of_any_size(random);
  costs[77].cap = no_cap;
  for (const std::int64_t batch : {1'000, 100'000, 10'000'000}) {
    EXPECT_EQ(test::fault_of(min_max_shares(batch, costs), batch, costs), "") << batch;
  }
}

TEST(MinMaxShares, refuse_a_batch_that_the_caps_cannot_hold) {
  EXPECT_EQ(test::usage_sentence([] {
              min_max_shares(10, Costs{{0, 1, 4}, {0, 1, 3}});
            }),
            "a batch of 10 does not fit: all ranks together take at most 7, which is 3 too few");
  EXPECT_EQ(test::usage_sentence([] {
              ideal_seconds(10, Costs{{0, 1, 4}, {0, 1, 3}});
            }),
            "a batch of 10 does not fit: all ranks together take at most 7, which is 3 too few");
  EXPECT_EQ(test::usage_sentence([] { min_max_shares(2, Costs{}); }),
            "a batch of 2 does not fit: all ranks together take at most 0, which is 2 too few");
}

TEST(MinMaxShares, refuse_costs_that_mean_nothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(test::usage_sentence([] {
              min_max_shares(4, Costs{{0, 1}, {0, -1}});
            }),
            "the cost of rank 1 is 0 s and -1 s per sample: costs are finite numbers and not negative");
  EXPECT_EQ(test::usage_sentence([] {
              min_max_shares(4, Costs{{0, 1}, {0, 1, -2}});
            }),
            "the largest share of rank 1 is -2 samples: the least that it can be is 0");
  for (const double bad : {nan, infinity, -infinity, -1e-300}) {
    EXPECT_NE(test::usage_sentence([&] { min_max_shares(4, Costs{{bad, 1}}); }), "no error");
    EXPECT_NE(test::usage_sentence([&] { min_max_shares(4, Costs{{0, bad}}); }), "no error");
    EXPECT_NE(test::usage_sentence([&] { ideal_seconds(0, Costs{{0, bad}}); }), "no error");
  }
}

TEST(IdealSeconds, are_those_of_the_closed_form) {
  // 1 / (1/1 + 1/2 + 1/3) = 6/11 per sample.
  EXPECT_DOUBLE_EQ(ideal_seconds(60, Costs{{0, 1}, {0, 2}, {0, 3}}), 60 * 6.0 / 11);
  // (batch + sum of fixed / sample) / sum of 1 / sample
  EXPECT_DOUBLE_EQ(ideal_seconds(30, Costs{{1, 1}, {4, 2}}), (30 + 1 + 2) / 1.5);
  EXPECT_DOUBLE_EQ(ideal_seconds(30, Costs{{1, 1}, {4, 2}, {100, 0.001}}), (30 + 1 + 2) / 1.5);
  // One rank at its cap: the others do the rest. A rank whose samples cost nothing does all from its start
  // on.
  EXPECT_DOUBLE_EQ(ideal_seconds(30, Costs{{0, 1, 5}, {0, 1}}), 25);
  EXPECT_DOUBLE_EQ(ideal_seconds(30, Costs{{0, 1}, {3, 0}}), 3);
  EXPECT_DOUBLE_EQ(ideal_seconds(30, Costs{{0, 0}, {3, 1}}), 0);
  // A rank a billion billion times as fast as the others, at its cap.
  EXPECT_DOUBLE_EQ(ideal_seconds(30, Costs{{0, 1e-18, 10}, {0, 1}, {0, 1}}), 10);
  // The same where the batch has more digits than a double.
  const std::int64_t many = std::int64_t{1} << 53;
  EXPECT_DOUBLE_EQ(ideal_seconds(many + 3, Costs{{0, 1e-18, many}, {0, 1}}), 3);
}

TEST(IdealSeconds, are_never_above_the_slowest_rank_and_at_most_a_sample_below_it) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 4000; ++round) {
    Costs costs(1 + random() % 12);
    for (RankCost& cost : costs) cost = cost_of_any_size(random);
    costs.back().cap = no_cap;
    const auto batch = static_cast<std::int64_t>(1 + random() % (round % 2 ? 20 : 1'000'000));
    const double ideal = ideal_seconds(batch, costs), slowest = min_max_shares(batch, costs).slowest_s;
    ASSERT_LE(ideal, slowest * (1 + 1e-12)) << "round " << round;
    // Rounding every share up makes no rank slower than by one sample, or by a fixed part that was not paid.
    double bound = ideal;
    for (const RankCost& cost : costs) {
      if (cost.fixed_s <= ideal) bound = std::max(bound, ideal + cost.sample_s);
    }
    ASSERT_LE(slowest, bound * (1 + 1e-12)) << "round " << round;
  }
}

TEST(IdealSeconds, are_what_whole_samples_come_close_to_in_a_large_batch) {
  const Costs costs{{0.01, 0.001}, {0, 0.003, 5000}, {0.5, 0.0007}, {0.02, 0.002}};
  const double slowest = min_max_shares(10'000'000, costs).slowest_s;
  EXPECT_NEAR(ideal_seconds(10'000'000, costs) / slowest, 1, 1e-6);
}

}  // namespace
}  // namespace motley::balance
