#include "balance/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"

namespace motley::balance {
namespace {

constexpr double fixed_s = 0.05, sample_s = 0.002;

double true_seconds(std::int64_t n) {
  return fixed_s + sample_s * static_cast<double>(n);
}

class CostModelTest : public ::testing::Test {
 protected:
  // A step of a rank with the true cost, times `factor`, with this much noise.
  void step(std::int64_t n, double noise = 0, double factor = 1) {
    std::normal_distribution<double> normal(1, noise);
    model.observe({n, factor * true_seconds(n) * (noise > 0 ? normal(random) : 1)});
  }
  CostModel model;
  std::mt19937 random{1};
};

TEST_F(CostModelTest, knows_nothing_before_the_first_step_nor_from_steps_without_a_share) {
  EXPECT_FALSE(model.known());
  model.observe({0, 0.1});
  EXPECT_FALSE(model.known());
}

TEST_F(CostModelTest, is_the_proportion_while_the_share_never_changed) {
  for (int i = 0; i < 100; ++i) step(32);
  EXPECT_NEAR(model.cost().sample_s, true_seconds(32) / 32, 1e-9);
  EXPECT_NEAR(model.cost().fixed_s, 0, 1e-9);
  EXPECT_NEAR(model.seconds(64), 2 * true_seconds(32), 1e-8);
}

TEST_F(CostModelTest, finds_the_fixed_part_as_soon_as_the_share_has_changed) {
  for (int i = 0; i < 8; ++i) step(32);
  for (int i = 0; i < 8; ++i) step(16);
  EXPECT_NEAR(model.cost().fixed_s, fixed_s, 0.1 * fixed_s);
  EXPECT_NEAR(model.cost().sample_s, sample_s, 0.1 * sample_s);
}

TEST_F(CostModelTest, keeps_its_slope_when_the_share_then_stays_the_same_for_long) {
  for (int i = 0; i < 20; ++i) step(32);
  for (int i = 0; i < 20; ++i) step(16);
  for (int i = 0; i < 20; ++i) step(24);
  for (int i = 0; i < 5000; ++i) step(24, 0.01);
  EXPECT_NEAR(model.cost().sample_s, sample_s, 0.15 * sample_s);
  EXPECT_NEAR(model.seconds(24), true_seconds(24), 0.01 * true_seconds(24));
}

TEST_F(CostModelTest, agrees_with_least_squares_over_varied_shares) {
  // Least squares in closed form over the same steps, all within the memory.
  double n1 = 0, n2 = 0, t1 = 0, nt = 0, count = 0;
  std::normal_distribution<double> noise(1, 0.01);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t n = 10 + 7 * (i % 9);
    const double seconds = true_seconds(n) * noise(random), x = static_cast<double>(n);
    model.observe({n, seconds});
    count += 1, n1 += x, n2 += x * x, t1 += seconds, nt += x * seconds;
  }
  const double slope = (count * nt - n1 * t1) / (count * n2 - n1 * n1);
  EXPECT_NEAR(model.cost().sample_s, slope, 0.03 * slope);
  EXPECT_NEAR(model.cost().fixed_s, (t1 - slope * n1) / count, 0.05 * fixed_s);
}

TEST_F(CostModelTest, a_single_outlier_counts_little) {
  for (int i = 0; i < 50; ++i) step(32, 0.01);
  const double before = model.seconds(32);
  step(32, 0, 20);  // another user's burst
  EXPECT_NEAR(model.seconds(32), before, 0.02 * before);
  step(32, 0, 10);
  step(32, 0.01);
  EXPECT_NEAR(model.seconds(32), before, 0.03 * before);
}

TEST_F(CostModelTest, three_steps_in_a_row_are_a_change_of_speed) {
  for (int i = 0; i < 50; ++i) step(i % 2 == 0 ? 32 : 16, 0.01);
  for (int i = 0; i < 3; ++i) step(32, 0.01, 3);
  EXPECT_NEAR(model.seconds(32), 3 * true_seconds(32), 0.05 * true_seconds(32) * 3);
  EXPECT_NEAR(model.seconds(16), 3 * true_seconds(16), 0.15 * true_seconds(16) * 3)
      << "both parts grow at first";
  for (int i = 0; i < 3; ++i) step(16, 0.01);
  EXPECT_NEAR(model.seconds(16), true_seconds(16), 0.05 * true_seconds(16));
}

TEST_F(CostModelTest, follows_a_delay_that_comes_in_the_middle) {
  for (int i = 0; i < 50; ++i) step(i % 2 == 0 ? 32 : 16, 0.005);
  for (int i = 0; i < 4; ++i) model.observe({32, true_seconds(32) + 0.1});
  for (int i = 0; i < 4; ++i) model.observe({20, true_seconds(20) + 0.1});
  EXPECT_NEAR(model.cost().fixed_s, fixed_s + 0.1, 0.02);
}

TEST_F(CostModelTest, follows_slow_drift) {
  for (int i = 0; i < 300; ++i) step(32, 0.01, 1 + 0.001 * i);
  EXPECT_NEAR(model.seconds(32), 1.3 * true_seconds(32), 0.05 * true_seconds(32));
}

TEST_F(CostModelTest, has_the_mean_of_scattered_times_and_their_scatter) {
  std::exponential_distribution<double> delay(1 / 0.08);
  double error = 0;
  for (int i = 0; i < 3000; ++i) {
    model.observe({32, true_seconds(32) + delay(random)});
    if (i >= 1000) error += model.seconds(32) - true_seconds(32) - 0.08;
  }
  // Clipping leaves the mean a little low.
  EXPECT_NEAR(error / 2000, 0, 0.015);
  EXPECT_NEAR(model.noise_s(), 0.08, 0.03);
}

TEST_F(CostModelTest, its_error_is_that_of_its_predictions_at_the_shares_it_ran) {
  double squares = 0, claimed = 0;
  for (int run = 0; run < 300; ++run) {
    model = {};
    for (int i = 0; i < 60; ++i) step(20 + i % 3 * 10, 0.05);
    squares += std::pow(model.seconds(30) / true_seconds(30) - 1, 2);
    claimed += std::pow(model.relative_error(), 2);
  }
  EXPECT_NEAR(std::sqrt(claimed / squares), 1, 0.2);
}

TEST_F(CostModelTest, long_times_at_one_sample_neither_spoil_the_fit_nor_what_is_stored) {
  for (const std::int64_t n : {6, 12, 3}) {
    for (int i = 0; i < 40; ++i) step(n, 0.02);
  }
  for (int i = 0; i < 3000; ++i) {
    step(1, 0.02);
    ASSERT_NEAR(model.seconds(1), true_seconds(1), 0.05 * true_seconds(1)) << i;
    ASSERT_LT(model.seconds(10), true_seconds(10) * 2) << i;
    ASSERT_NO_THROW(CostModel::from_json(model.to_json(), "trainer.json")) << i;
  }
  for (int i = 0; i < 2000; ++i) {
    step(i % 2 == 0 ? 1 : 8, 0.02);
    ASSERT_NO_THROW(CostModel::from_json(model.to_json(), "trainer.json")) << i;
  }
  EXPECT_NEAR(model.cost().sample_s, sample_s, 0.2 * sample_s);
}

TEST_F(CostModelTest, costs_are_never_negative_whatever_the_noise) {
  for (int run = 0; run < 200; ++run) {
    model = {};
    for (int i = 0; i < 30; ++i) {
      step(31 + i % 2, 0.3);
      EXPECT_GE(model.cost().fixed_s, 0);
      EXPECT_GT(model.cost().sample_s, 0);
      EXPECT_GT(model.seconds(1), 0);
    }
  }
}

TEST_F(CostModelTest, a_rank_that_is_believed_has_the_cost_of_that_step) {
  for (int i = 0; i < 20; ++i) step(4, 0.01, 8);
  model.believe({1, true_seconds(1)});
  EXPECT_NEAR(model.seconds(1), true_seconds(1), 0.01 * true_seconds(1));
}

TEST_F(CostModelTest, goes_on_from_its_json_as_if_never_stopped) {
  for (int i = 0; i < 20; ++i) step(i, 0.02);
  CostModel copy = CostModel::from_json(Json::parse(model.to_json().dump()), "trainer.json");
  for (int i = 0; i < 20; ++i) {
    const StepTime next{i + 3, true_seconds(i) * 1.1};
    model.observe(next);
    copy.observe(next);
  }
  EXPECT_EQ(copy.seconds(17), model.seconds(17));
  EXPECT_EQ(copy.relative_error(), model.relative_error());
}

TEST_F(CostModelTest, damaged_json_is_an_error_that_names_the_file) {
  step(3);
  const std::pair<const char*, Json> damages[] = {{"normal", {1, 2}},
                                                  {"normal", {1, 9, 1, 1, 1}},
                                                  {"normal", {-1, 1, 1, 1, 1}},
                                                  {"mean", {1, -1, 1}},
                                                  {"noise_s", -1},
                                                  {"largest", std::int64_t{1} << 40},
                                                  {"steps", -3}};
  for (const auto& [key, value] : damages) {
    Json json = model.to_json();
    json[key] = value;
    try {
      CostModel::from_json(json, "step-1/trainer.json");
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint);
      EXPECT_NE(std::string(error.what()).find("step-1/trainer.json"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace motley::balance
