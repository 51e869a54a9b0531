#include "balance/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "core/error.h"

namespace motley::balance {
namespace {

Cluster of_nodes(const std::string& nodes, const NodeScale& scale = {}) {
  Cluster cluster;
  cluster.ranks = parse_nodes(nodes, scale);
  return cluster;
}

const NodeVerdict& verdict_of(const Plan& plan, const std::string& node) {
  for (const NodeVerdict& verdict : plan.nodes) {
    if (verdict.node == node) return verdict;
  }
  throw std::runtime_error("no node " + node);
}

TEST(Plan, shares_follow_speeds) {
  const Plan plan = make_plan(of_nodes("slow:1, fast:3"), 100);
  EXPECT_EQ(plan.shares, (std::vector<std::int64_t>{25, 75}));
  EXPECT_NEAR(plan.times.step_s(), 25e-3, 1e-12);
  EXPECT_NEAR(plan.efficiency, 1, 1e-12);
}

TEST(Plan, equal_ranks_are_fully_efficient) {
  const Plan plan = make_plan(of_nodes("ax4:1"), 64);
  EXPECT_EQ(plan.shares, (std::vector<std::int64_t>{16, 16, 16, 16}));
  EXPECT_NEAR(plan.efficiency, 1, 1e-12);
  EXPECT_EQ(plan.limit, Limit::compute);
}

TEST(Plan, whole_samples_cost_efficiency) {
  const Plan plan = make_plan(of_nodes("ax4:1"), 5);
  EXPECT_NEAR(plan.times.compute_s, 2e-3, 1e-12);
  EXPECT_NEAR(plan.efficiency, 5.0 / 8, 1e-12);
  EXPECT_NE(plan.advice.find("whole samples"), std::string::npos) << plan.advice;
}

TEST(Plan, a_fixed_cost_is_named) {
  const Plan plan = make_plan(of_nodes("a:1+10ms, b:1+10ms"), 20);
  EXPECT_NEAR(plan.times.compute_s, 20e-3, 1e-12);
  EXPECT_NEAR(plan.efficiency, 0.5, 1e-12);
  EXPECT_NE(plan.advice.find("optimizer"), std::string::npos) << plan.advice;
}

TEST(Plan, memory_limits_when_small_micro_batches_cost_time) {
  // 1000 bytes hold the model of 800 and two samples: four micro-batches for eight samples instead of one.
  const NodeScale scale{.sample_s = 1e-3, .micro_s = 5e-3, .model_bytes = 800, .sample_bytes = 100};
  const Plan plan = make_plan(of_nodes("a:1/1000, b:1/1000", scale), 16);
  EXPECT_EQ(plan.micro_batches, (std::vector<std::int64_t>{2, 2}));
  EXPECT_NEAR(plan.times.compute_s, 8e-3 + 4 * 5e-3, 1e-12);
  EXPECT_EQ(plan.limit, Limit::memory);
}

TEST(Plan, a_rank_that_holds_no_sample_gets_none) {
  const NodeScale scale{.model_bytes = 800, .sample_bytes = 100};
  const Plan plan = make_plan(of_nodes("a:1/1000, small:1/850", scale), 16);
  EXPECT_EQ(plan.shares, (std::vector<std::int64_t>{16, 0}));
  EXPECT_EQ(plan.micro_batches[1], 0);
  EXPECT_EQ(plan.limit, Limit::memory);
  EXPECT_NE(plan.advice.find("too little memory"), std::string::npos) << plan.advice;
  EXPECT_TRUE(std::isinf(verdict_of(plan, "a").without_s)) << "the other cannot do it alone";
  EXPECT_NEAR(plan.efficiency, 0.5, 1e-12) << "its speed is there, and lost";
  EXPECT_THROW(make_plan(of_nodes("small:1/850", scale), 16), Error);
}

TEST(Plan, the_network_limits_when_it_takes_longer_than_the_work) {
  Cluster cluster = of_nodes("ax2:1");
  cluster.network = {0, 1e9};
  cluster.gradient_bytes = 100'000'000;
  const Plan plan = make_plan(cluster, 64);
  EXPECT_NEAR(plan.times.compute_s, 32e-3, 1e-12);
  EXPECT_NEAR(plan.times.network_s, 0.1, 1e-12);
  EXPECT_EQ(plan.limit, Limit::network);
  EXPECT_NEAR(plan.efficiency, 32.0 / 132, 1e-9);
}

TEST(Plan, an_old_node_may_cost_the_ring_more_than_it_brings) {
  Cluster cluster = of_nodes("newx8:1, old:0.05");
  cluster.network = {1e-3, 1e12};
  cluster.gradient_bytes = 1000;
  const Plan plan = make_plan(cluster, 64);
  // With it 8 ms of work and 16 latencies, without it 8 ms and 14.
  EXPECT_NEAR(plan.times.step_s(), 24e-3, 1e-6);
  EXPECT_NEAR(verdict_of(plan, "old").without_s, 22e-3, 1e-6);
  EXPECT_LT(verdict_of(plan, "old").gain, -gain_that_counts);
}

TEST(Plan, a_node_that_brings_more_than_it_costs_is_worth_it) {
  const Plan plan = make_plan(of_nodes("newx2:1, old:0.5"), 100);
  EXPECT_NEAR(plan.times.step_s(), 40e-3, 1e-12);
  EXPECT_NEAR(verdict_of(plan, "old").without_s, 50e-3, 1e-12);
  EXPECT_NEAR(verdict_of(plan, "old").gain, 0.25, 1e-9);
  EXPECT_EQ(verdict_of(plan, "new").ranks, 2);
  EXPECT_NEAR(verdict_of(plan, "new").without_s, 200e-3, 1e-12) << "ranks of a node go together";
}

TEST(Plan, an_idle_rank_still_takes_its_fixed_part) {
  const Plan plan = make_plan(of_nodes("new:1, old:1+100ms"), 10);
  EXPECT_EQ(plan.shares[1], 0);
  EXPECT_NEAR(plan.times.step_s(), 100e-3, 1e-12);
  EXPECT_NEAR(verdict_of(plan, "old").without_s, 10e-3, 1e-12);
}

TEST(Plan, nodes_of_the_same_description_are_judged_once) {
  Cluster cluster;
  for (int node = 0; node < 50; ++node)
    for (int rank = 0; rank < 2; ++rank)
      cluster.ranks.push_back({.node = std::to_string(node), .device = "new", .sample_s = 1e-3});
  cluster.ranks.push_back({.node = "old", .device = "old", .sample_s = 1e-2});
  const Plan plan = make_plan(cluster, 1000);
  ASSERT_EQ(plan.nodes.size(), 2u);
  EXPECT_EQ(plan.nodes[0].nodes, 50);
  EXPECT_EQ(plan.nodes[0].ranks, 2);
}

TEST(Plan, says_what_it_does_not_know) {
  const auto mentions = [](const Plan& plan, const std::string& word) {
    return std::any_of(plan.left_out.begin(), plan.left_out.end(),
                       [&](const std::string& part) { return part.find(word) != std::string::npos; });
  };
  EXPECT_TRUE(mentions(make_plan(of_nodes("ax2:1"), 8), "all-reduce"));
  EXPECT_TRUE(mentions(make_plan(of_nodes("ax2:1"), 8), "memory"));
  Cluster known = of_nodes("ax2:1/4G+1ms", {.micro_s = 1e-3, .model_bytes = 1, .sample_bytes = 1});
  known.network = {1e-6, 1e9};
  known.gradient_bytes = 10;
  EXPECT_TRUE(make_plan(known, 8).left_out.empty());
}

TEST(Plan, a_hundred_thousand_ranks_are_planned) {
  const Plan plan = make_plan(of_nodes("ax40000:1, bx40000:0.5, cx20000:0.1"), 4'000'000);
  EXPECT_EQ(std::accumulate(plan.shares.begin(), plan.shares.end(), std::int64_t{0}), 4'000'000);
  EXPECT_EQ(plan.nodes.size(), 3u);
  EXPECT_GT(plan.efficiency, 0.95);
}

TEST(Plan, of_many_different_nodes_the_slowest_are_judged) {
  Cluster cluster;
  for (int i = 0; i < 5000; ++i)
    cluster.ranks.push_back({.node = std::to_string(i), .device = "", .sample_s = 1e-3 * (1 + i * 1e-5)});
  const Plan plan = make_plan(cluster, 1'000'000);
  EXPECT_EQ(plan.nodes.size() + static_cast<std::size_t>(plan.nodes_left_out), 5000u);
  EXPECT_EQ(plan.nodes.front().node, "4999");
}

}  // namespace
}  // namespace motley::balance
