#include "report/summary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace motley::report {
namespace {

StepRecord record_of(std::int64_t steps, double step_s, std::vector<RankTime> ranks) {
  StepRecord record;
  record.steps = steps;
  record.step_s = step_s;
  record.ranks = std::move(ranks);
  for (const RankTime& rank : record.ranks) record.samples += rank.n * steps;
  return record;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Summary, definitions_by_hand) {
  Summary summary;
  // One step: compute 3 and 1, mean 2, imbalance 1/2. Three steps: compute 6 and 6, imbalance 0.
  summary.add(record_of(1, 4, {{30, 3, 1}, {10, 1, 3}}));
  summary.add(record_of(3, 8, {{20, 6, 2}, {20, 6, 2}}));
  EXPECT_DOUBLE_EQ(summary.samples_per_s(), (40 + 120) / 12.0);
  EXPECT_DOUBLE_EQ(summary.imbalance(), (1 * 0.5 + 3 * 0.0) / 4);
  EXPECT_DOUBLE_EQ(summary.lost_fraction(), 8 / (2 * 12.0));
  const std::vector<double> speeds = summary.speeds();
  ASSERT_EQ(speeds.size(), 2u);
  EXPECT_DOUBLE_EQ(speeds[0], (30 + 3 * 20) / 9.0);
  EXPECT_DOUBLE_EQ(speeds[1], (10 + 3 * 20) / 7.0);
}

TEST(Summary, of_nothing_is_zero_and_says_so) {
  const Summary summary;
  EXPECT_EQ(summary.samples_per_s(), 0);
  EXPECT_EQ(summary.imbalance(), 0);
  EXPECT_EQ(summary.lost_fraction(), 0);
  EXPECT_EQ(summary.text(), "no step was taken");
}

TEST(Summary, a_rank_without_work_has_no_speed) {
  Summary summary;
  summary.add(record_of(1, 1, {{10, 1, 0}, {0, 0, 1}}));
  EXPECT_EQ(summary.speeds(), (std::vector<double>{10, 0}));
}

TEST(Summary, equal_shares_over_a_slow_rank_propose_weights) {
  Summary summary;
  // Ranks 0, 2, 3 take 1 s for 64 samples and wait 2 s; rank 1 takes 3 s.
  summary.add(record_of(10, 30, {{64, 10, 20}, {64, 30, 0}, {64, 10, 20}, {64, 10, 20}}));
  EXPECT_EQ(summary.text(),
            "10 steps, 2560 samples in 0:30: 85.3 samples/s\n"
            "  rank     share    samples/s   working   waiting\n"
            "     0      64.0         64.0    33.3 %    66.7 %\n"
            "     1      64.0         21.3   100.0 %     0.0 %\n"
            "     2      64.0         64.0    33.3 %    66.7 %\n"
            "     3      64.0         64.0    33.3 %    66.7 %\n"
            "imbalance 100.0 % (the busiest rank's work over the mean), 50.0 % of rank-time lost waiting\n"
            "NOTE: 50.0 % of rank-time was lost waiting for rank 1, which works at 0.33 of the fastest "
            "rank's speed. "
            "Try --policy auto, or --policy static --weights 3,1,3,3.");
}

TEST(Summary, weights_that_overload_a_fast_rank_are_said) {
  Summary summary;
  summary.add(record_of(1, 2, {{20, 2, 0}, {10, 1, 1}}));
  const std::string text = summary.text();
  EXPECT_TRUE(contains(text, "waiting for rank 0, which is as fast as the fastest but had more to do"))
      << text;
  EXPECT_TRUE(contains(text, "--weights 1,1.")) << text;
}

TEST(Summary, small_losses_need_no_change) {
  Summary summary;
  summary.add(record_of(1, 1, {{20, 1.0, 0}, {20, 0.95, 0.05}}));
  const std::string text = summary.text();
  EXPECT_TRUE(contains(text, "Nothing needs changing")) << text;
  EXPECT_FALSE(contains(text, "NOTE")) << text;
}

TEST(Summary, when_all_wait_alike_it_is_communication) {
  Summary summary;
  summary.add(record_of(1, 1, {{60, 0.60, 0.4}, {30, 0.59, 0.4}}));
  const std::string text = summary.text();
  EXPECT_TRUE(
      contains(text,
               "NOTE: 40.0 % of rank-time was lost waiting, by all ranks about equally: the shares are "
               "already right"))
      << text;
  EXPECT_FALSE(contains(text, "--weights ")) << text;
}

TEST(Summary, ranks_that_take_turns_in_being_slow_are_not_given_weights) {
  Summary summary;
  for (int step = 0; step < 10; ++step) {
    const bool odd = step % 2 == 1;
    summary.add(
        record_of(1, 1, {{20, odd ? 0.5 : 1.0, odd ? 0.5 : 0.0}, {20, odd ? 1.0 : 0.5, odd ? 0.0 : 0.5}}));
  }
  const std::string text = summary.text();
  EXPECT_TRUE(contains(text, "took turns in being the slowest")) << text;
  EXPECT_FALSE(contains(text, "--weights ")) << text;
}

TEST(Summary, a_single_rank_can_only_wait_for_data) {
  Summary summary;
  summary.add(record_of(1, 1, {{20, 0.5, 0.5}}));
  EXPECT_TRUE(contains(summary.text(), "most of it for data")) << summary.text();
}

TEST(Summary, waiting_for_the_reader_is_told_from_waiting_for_ranks) {
  Summary summary;
  summary.add(record_of(1, 1, {{20, 0.5, 0.1, 0.4}, {20, 0.5, 0.1, 0.4}}));
  EXPECT_TRUE(contains(summary.text(), "50.0 % of rank-time was lost waiting, most of it for data"))
      << summary.text();
}

TEST(Summary, measured_shares_are_not_answered_with_weights) {
  Summary summary;
  summary.add(record_of(10, 30, {{64, 10, 20}, {1, 30, 0}}));
  const std::string text = summary.text(false, true);
  EXPECT_TRUE(contains(text, "waiting for rank 1")) << text;
  EXPECT_TRUE(contains(text, "motley plan")) << text;
  EXPECT_FALSE(contains(text, "--weights")) << text;
}

TEST(Summary, of_many_ranks_the_busiest_are_listed) {
  Summary summary;
  std::vector<RankTime> ranks(40, RankTime{10, 0.5, 0.5});
  ranks[33].compute_s = 1;
  ranks[33].wait_s = 0;
  summary.add(record_of(1, 1, ranks));
  const std::string text = summary.text();
  EXPECT_TRUE(contains(text, "the 16 busiest of 40 ranks:\n")) << text;
  EXPECT_TRUE(contains(text, "\n    33 ")) << text;
  EXPECT_FALSE(contains(text, "\n    39 ")) << text;
}

TEST(SimpleRatio, table) {
  EXPECT_EQ(simple_ratio({}), std::vector<int>{});
  EXPECT_EQ(simple_ratio({0, 0}), (std::vector<int>{1, 1}));
  EXPECT_EQ(simple_ratio({5, 0}), (std::vector<int>{1, 0}));
  EXPECT_EQ(simple_ratio({0.98, 0.33, 1.0, 0.97}), (std::vector<int>{3, 1, 3, 3}));
  EXPECT_EQ(simple_ratio({100, 150}), (std::vector<int>{2, 3}));
  EXPECT_EQ(simple_ratio({1, 1000}), (std::vector<int>{1, 20}));
}

double worst_error(const std::vector<double>& speeds, const std::vector<int>& ratio) {
  const double fastest = *std::max_element(speeds.begin(), speeds.end());
  const int largest = *std::max_element(ratio.begin(), ratio.end());
  double error = 0;
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    error = std::max(error, std::abs(ratio[i] / static_cast<double>(largest) / (speeds[i] / fastest) - 1));
  }
  return error;
}

TEST(SimpleRatio, is_within_ten_percent_whenever_brute_force_finds_such_numbers_and_in_lowest_terms) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> exponent(-3, 0);
  for (int round = 0; round < 300; ++round) {
    const std::vector<double> speeds = {std::exp(exponent(generator)), std::exp(exponent(generator)),
                                        std::exp(exponent(generator))};
    const int limit = 1 + static_cast<int>(generator() % 12);
    const std::vector<int> ratio = simple_ratio(speeds, limit);
    double best = INFINITY;
    for (int a = 1; a <= limit; ++a) {
      for (int b = 1; b <= limit; ++b) {
        for (int c = 1; c <= limit; ++c) best = std::min(best, worst_error(speeds, {a, b, c}));
      }
    }
    if (best <= 0.1) {
      EXPECT_LE(worst_error(speeds, ratio), 0.1 + 1e-9);
    } else {
      EXPECT_NEAR(worst_error(speeds, ratio), best, 1e-9);
    }
    EXPECT_LE(*std::max_element(ratio.begin(), ratio.end()), limit);
    EXPECT_GE(*std::min_element(ratio.begin(), ratio.end()), 1);
    EXPECT_EQ(std::gcd(std::gcd(ratio[0], ratio[1]), ratio[2]), 1);
  }
}

TEST(Summary, ranks_that_share_processors_are_not_advised_about_communication) {
  Summary summary;
  summary.add(record_of(1, 2, {{20, 1, 1}, {20, 1, 1}}));
  EXPECT_TRUE(contains(summary.text(false), "goes into communication"));
  EXPECT_TRUE(contains(summary.text(true), "fewer processors than its ranks have threads"));
}

TEST(Summary, ranks_without_a_share_are_proposed_one) {
  Summary summary;
  summary.add(record_of(1, 2, {{0, 0, 2}, {30, 2, 0}, {10, 1, 1}}));
  // Speeds 15 and 10; the idle rank counts as 12.5: 4, 5, 3 is within a tenth of that.
  EXPECT_TRUE(contains(summary.text(), "--weights 4,5,3 (ranks that had no share")) << summary.text();
}

}  // namespace
}  // namespace motley::report
