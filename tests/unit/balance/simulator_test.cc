#include "balance/simulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"

namespace motley::balance {
namespace {

Cluster of_nodes(const std::string& nodes) {
  Cluster cluster;
  cluster.ranks = parse_nodes(nodes, {});
  return cluster;
}

// Speeds 1:1:2:4 and a batch of 256: 32 ms when divided by speed, 64 ms when divided equally.
SimulationOptions options_of(PolicyKind policy) {
  SimulationOptions options;
  options.policy = policy;
  options.global_batch = 256;
  return options;
}
const char* const unequal = "a:1, b:1, c:2, d:4";

TEST(Simulator, equal_shares_wait_for_the_slowest) {
  const Simulation run = simulate(of_nodes(unequal), options_of(PolicyKind::sync));
  ASSERT_EQ(run.step_s.size(), 200u);
  for (const double seconds : run.step_s) EXPECT_NEAR(seconds, 64e-3, 1e-12);
  EXPECT_EQ(run.steps_to_settle(), 0);
  EXPECT_EQ(run.changes, 0);
}

TEST(Simulator, shares_by_speed_are_right_from_the_start) {
  SimulationOptions options = options_of(PolicyKind::fixed);
  options.weights = speeds(of_nodes(unequal));
  const Simulation run = simulate(of_nodes(unequal), options);
  EXPECT_NEAR(run.settled_s(), 32e-3, 1e-12);
  EXPECT_EQ(run.shares, (std::vector<std::int64_t>{32, 32, 64, 128}));
}

TEST(Simulator, the_automatic_policy_finds_them_within_40_steps) {
  for (const double noise : {0.0, 0.02}) {
    SimulationOptions options = options_of(PolicyKind::automatic);
    options.noise = noise;
    const Simulation run = simulate(of_nodes(unequal), options);
    EXPECT_NEAR(run.step_s[0], 64e-3, 64e-3 * 4 * noise + 1e-12) << "nothing is known yet";
    for (std::size_t step = 40; step < run.expected_s.size(); ++step)
      EXPECT_LE(run.expected_s[step], 1.05 * 32e-3) << "step " << step << ", noise " << noise;
    EXPECT_LE(run.steps_to_settle(), 40);
  }
}

TEST(Simulator, plans_a_window_ahead_as_the_trainer_does) {
  // Epochs of one window: the second is planned when the first starts, so that the third is the first to
  // move.
  SimulationOptions options = options_of(PolicyKind::edp);
  options.steps_per_epoch = options.window = 8;
  const Simulation run = simulate(of_nodes(unequal), options);
  for (std::size_t step = 0; step < 16; ++step) EXPECT_NEAR(run.step_s[step], 64e-3, 1e-12) << step;
  EXPECT_NEAR(run.step_s[16], 32e-3, 1e-12);
}

TEST(Simulator, published_policies_move_with_epochs) {
  for (const PolicyKind policy : {PolicyKind::dp, PolicyKind::edp}) {
    const Simulation run = simulate(of_nodes(unequal), options_of(policy));
    for (std::size_t step = 0; step < 25; ++step) EXPECT_NEAR(run.step_s[step], 64e-3, 1e-12) << step;
    EXPECT_NEAR(run.settled_s(), 32e-3, 2e-3);
    EXPECT_GE(run.steps_to_settle(), 25);
  }
}

TEST(Simulator, noise_has_the_mean_and_deviation_that_were_asked_for) {
  SimulationOptions options;
  options.policy = PolicyKind::sync;
  options.global_batch = 10;
  options.steps = 4000;
  options.noise = 0.1;
  const Simulation run = simulate(of_nodes("a:1"), options);
  double sum = 0, squares = 0;
  for (const double seconds : run.step_s) {
    sum += seconds / 10e-3;
    squares += std::pow(seconds / 10e-3, 2);
  }
  const double mean = sum / 4000, deviation = std::sqrt(squares / 4000 - mean * mean);
  EXPECT_NEAR(mean, 1, 4 * 0.1 / std::sqrt(4000.0));
  EXPECT_NEAR(deviation, 0.1, 0.01);
  EXPECT_EQ(run.step_s, simulate(of_nodes("a:1"), options).step_s);
  options.seed += 1;
  EXPECT_NE(run.step_s, simulate(of_nodes("a:1"), options).step_s);
}

TEST(Simulator, slow_ranks_are_slow_when_they_are_said_to_be) {
  SimulationOptions options = options_of(PolicyKind::sync);
  options.slow = parse_slow("0:3x@11-20,1:+100ms@31-40", 4);
  const Simulation run = simulate(of_nodes(unequal), options);
  EXPECT_NEAR(run.step_s[9], 64e-3, 1e-12);
  EXPECT_NEAR(run.step_s[10], 3 * 64e-3, 1e-12);
  EXPECT_NEAR(run.step_s[19], 3 * 64e-3, 1e-12);
  EXPECT_NEAR(run.step_s[20], 64e-3, 1e-12);
  EXPECT_NEAR(run.step_s[30], 164e-3, 1e-12);
}

TEST(Simulator, the_automatic_policy_follows_a_change_of_speed) {
  SimulationOptions options = options_of(PolicyKind::automatic);
  options.slow = parse_slow("3:4x@101-", 4);
  const Simulation run = simulate(of_nodes(unequal), options);
  // From there on speeds are 1:1:2:1, and 256 samples take 51.2 ms.
  EXPECT_NEAR(run.expected_s[99], 32e-3, 2e-3);
  EXPECT_GT(run.expected_s[100], 100e-3);
  EXPECT_LE(run.expected_s[199], 1.05 * 51.2e-3);
}

TEST(Simulator, the_network_is_added_and_ranks_without_memory_are_left_out) {
  Cluster cluster;
  cluster.ranks = parse_nodes("a:1/1000, small:1/850", {.model_bytes = 800, .sample_bytes = 100});
  cluster.network = {1e-3, 1e12};
  cluster.gradient_bytes = 1000;
  SimulationOptions options;
  options.global_batch = 16;
  const Simulation run = simulate(cluster, options);
  EXPECT_NEAR(run.settled_s(), 16e-3 + 2e-3, 1e-8);
  EXPECT_EQ(run.shares, (std::vector<std::int64_t>{16, 0}));
}

TEST(Simulator, a_hundred_thousand_ranks_run) {
  SimulationOptions options;
  options.global_batch = 2'000'000;
  options.steps = 40;
  options.noise = 0.02;
  const Simulation run = simulate(of_nodes("ax50000:1, bx50000:0.3"), options);
  EXPECT_EQ(std::accumulate(run.shares.begin(), run.shares.end(), std::int64_t{0}), 2'000'000);
  EXPECT_LT(run.expected_s.back(), 0.7 * run.expected_s.front());
}

TEST(Simulator, a_hundred_thousand_ranks_of_which_half_are_idle_run_as_fast) {
  for (const PolicyKind policy : {PolicyKind::dp, PolicyKind::automatic}) {
    SimulationOptions options;
    options.policy = policy;
    options.global_batch = 500'000;
    options.steps = 120;
    options.steps_per_epoch = 20;
    const Simulation run = simulate(of_nodes("ax50000:1, bx50000:0.01"), options);
    EXPECT_EQ(std::accumulate(run.shares.begin(), run.shares.end(), std::int64_t{0}), 500'000);
    EXPECT_LT(run.settled_s(), 0.5 * run.expected_s.front());
  }
}

TEST(Simulator, refuses_what_cannot_be_played) {
  SimulationOptions options;
  options.steps = 0;
  EXPECT_THROW(simulate(of_nodes("a:1"), options), Error);
}

}  // namespace
}  // namespace motley::balance
