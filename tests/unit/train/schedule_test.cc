#include "train/schedule.h"

#include <gtest/gtest.h>

namespace motley::train {
namespace {

TEST(LearningRate, warms_up_linearly_from_zero_as_hetseq_does) {
  ScheduleOptions options;
  options.lr = {0.8};
  options.warmup_updates = 4;
  options.total_num_update = 14;
  EXPECT_DOUBLE_EQ(learning_rate(options, 1, 1), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 2, 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 5, 1), 0.8);
}

TEST(LearningRate, decays_by_a_polynomial_to_its_end) {
  ScheduleOptions options;
  options.lr = {1.0};
  options.warmup_updates = 10;
  options.total_num_update = 110;
  options.end_learning_rate = 0.1;
  options.power = 2;
  // Half way: 0.9 * 0.5^2 + 0.1.
  EXPECT_DOUBLE_EQ(learning_rate(options, 61, 1), 0.325);
  EXPECT_DOUBLE_EQ(learning_rate(options, 111, 1), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 100000, 1), 0.1);
}

TEST(LearningRate, without_warm_up_starts_at_the_full_rate) {
  ScheduleOptions options;
  options.lr = {0.25};
  options.total_num_update = 100;
  EXPECT_DOUBLE_EQ(learning_rate(options, 1, 1), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(options, 51, 1), 0.125);
}

TEST(LearningRate, takes_one_rate_per_epoch_and_the_last_for_the_rest) {
  ScheduleOptions options;
  options.lr = {0.5, 0.2};
  options.power = 0;  // no decay
  EXPECT_DOUBLE_EQ(learning_rate(options, 1, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10, 2), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 20, 9), 0.2);
}

}  // namespace
}  // namespace motley::train
