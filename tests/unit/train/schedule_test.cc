#include "train/schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/paths.h"

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

// tests/golden/schedules.py
std::vector<double> of_pytorch(const std::string& name) {
  std::ifstream file(test::source_path("golden/schedules.json"));
  return nlohmann::json::parse(file).at(name).get<std::vector<double>>();
}

// The rates of PyTorch's schedule after 0, 1, 2, ... of its steps, by epochs of 9 updates and by updates.
void expect_as_pytorch(ScheduleOptions options, const std::string& name) {
  const std::vector<double> expected = of_pytorch(name);
  options.lr = {0.1};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto done = static_cast<std::int64_t>(i);
    options.unit = "epoch";
    EXPECT_NEAR(learning_rate(options, 9 * done + 1, static_cast<int>(done + 1)), expected[i], 1e-12)
        << name << " " << i;
    EXPECT_NEAR(learning_rate(options, 9 * done + 9, static_cast<int>(done + 1)), expected[i], 1e-12)
        << name << " " << i;
    options.unit = "update";
    EXPECT_NEAR(learning_rate(options, done + 1, 1), expected[i], 1e-12) << name << " " << i;
  }
}

TEST(LearningRate, follows_a_cosine_as_pytorch_does) {
  ScheduleOptions options;
  options.scheduler = "cosine";
  options.epochs = options.total_num_update = 30;
  expect_as_pytorch(options, "cosine");
  options.end_learning_rate = 0.01;
  expect_as_pytorch(options, "cosine_to_0.01");
}

TEST(LearningRate, a_cosine_stays_at_its_end) {
  ScheduleOptions options;
  options.scheduler = "cosine";
  options.epochs = options.total_num_update = 30;
  options.end_learning_rate = 0.01;
  EXPECT_EQ(learning_rate(options, 1, 31), 0.01);
  EXPECT_EQ(learning_rate(options, 1, 500), 0.01);
  options.unit = "update";
  EXPECT_EQ(learning_rate(options, 500, 1), 0.01);
}

TEST(LearningRate, falls_in_steps_as_pytorch_does) {
  ScheduleOptions options;
  options.scheduler = "step";
  options.gamma = 0.3;
  options.step_size = 7;
  expect_as_pytorch(options, "step");
  options.step_size = 0;
  options.gamma = 0.2;
  options.milestones = {3, 4, 20};
  expect_as_pytorch(options, "milestones");
}

TEST(LearningRate, warms_up_to_where_a_cosine_or_the_steps_are) {
  ScheduleOptions options;
  options.lr = {0.8};
  options.warmup_updates = 4;
  options.scheduler = "cosine";
  options.unit = "update";
  options.total_num_update = 14;
  EXPECT_DOUBLE_EQ(learning_rate(options, 1, 1), 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 2, 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 5, 1), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(options, 10, 1), 0.4) << "half way from the end of the warm-up";
  options.scheduler = "step";
  options.step_size = 2;
  options.gamma = 0.5;
  EXPECT_DOUBLE_EQ(learning_rate(options, 4, 1), 0.8 * 0.5 * 3 / 4);
  EXPECT_DOUBLE_EQ(learning_rate(options, 5, 1), 0.8 * 0.25);
}

TEST(LearningRate, a_cosine_scales_the_rate_of_each_epoch) {
  ScheduleOptions options;
  options.lr = {1.0, 0.5};
  options.scheduler = "cosine";
  options.epochs = 4;
  EXPECT_DOUBLE_EQ(learning_rate(options, 1, 1), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 20, 3), 0.25);
}

}  // namespace
}  // namespace motley::train
