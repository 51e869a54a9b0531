#include "train/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace motley::train {
namespace {

PlannerOptions options_for(std::uint64_t samples, std::int64_t batch) {
  PlannerOptions options;
  options.samples = samples;
  options.seed = 5;
  options.global_batch = [batch](int) { return batch; };
  options.window = 4;
  options.max_epoch = 2;
  return options;
}

std::vector<double> unequal(int ranks) {
  std::vector<double> weights;
  for (int rank = 0; rank < ranks; ++rank) weights.push_back(rank == 1 ? 0 : rank + 1);
  return weights;
}

// The global batch of every step, put together from all ranks: step -> slot -> sample.
using Batches = std::map<std::int64_t, std::vector<std::uint64_t>>;

Batches run(const comm::Communicator& world, const PlannerOptions& options, const Position& start,
            const std::vector<double>& weights) {
  Planner planner(world, options, start);
  Batches batches;
  while (const auto window = planner.next(weights)) {
    std::size_t next_row = 0;
    for (const StepPlan& step : window->steps) {
      // Each rank contributes its slots; the sum over ranks is the batch (ids are below 2^53: exact).
      std::vector<double> slots(static_cast<std::size_t>(step.batch), 0.0);
      for (std::int64_t i = 0; i < step.n; ++i) {
        slots[static_cast<std::size_t>(step.offset + i)] = static_cast<double>(window->rows[next_row++] + 1);
      }
      world.all_reduce_sum(slots, "the batch");
      for (const double id : slots) batches[step.step].push_back(static_cast<std::uint64_t>(id) - 1);
    }
    EXPECT_EQ(next_row, window->rows.size());
  }
  return batches;
}

TEST(Planner, every_epoch_has_every_sample_once_and_the_last_batch_is_the_rest) {
  const comm::Communicator world(MPI_COMM_WORLD);
  const Batches batches = run(world, options_for(103, 10), {}, unequal(world.size()));
  ASSERT_EQ(batches.size(), 22u);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::set<std::uint64_t> seen;
    for (int i = 1; i <= 11; ++i) {
      const auto& batch = batches.at(epoch * 11 + i);
      EXPECT_EQ(batch.size(), i == 11 ? 3u : 10u);
      seen.insert(batch.begin(), batch.end());
    }
    EXPECT_EQ(seen.size(), 103u);
    EXPECT_EQ(*seen.rbegin(), 102u);
  }
  EXPECT_NE(batches.at(1), batches.at(12)) << "epochs are shuffled differently";
}

TEST(Planner, global_batches_do_not_depend_on_how_they_are_shared) {
  const comm::Communicator world(MPI_COMM_WORLD);
  const comm::Communicator alone(MPI_COMM_SELF);
  const PlannerOptions options = options_for(77, 9);
  const Batches whole = run(alone, options, {}, {1});
  EXPECT_EQ(run(world, options, {}, unequal(world.size())), whole);
  EXPECT_EQ(run(world, options, {}, std::vector<double>(static_cast<std::size_t>(world.size()), 1)), whole);
}

TEST(Planner, continues_anywhere_with_the_same_batches) {
  const comm::Communicator world(MPI_COMM_WORLD);
  const PlannerOptions options = options_for(50, 8);
  const std::vector<double> weights = unequal(world.size());
  const Batches whole = run(world, options, {}, weights);
  for (const std::int64_t step : {1, 6, 7, 9, 13}) {
    const int epoch = step <= 7 ? 1 : 2;
    const std::int64_t in_epoch = step - (epoch - 1) * 7;
    const Batches rest =
        run(world, options, {epoch, std::min<std::int64_t>(in_epoch * 8, 50), step}, weights);
    Batches expected = whole;
    expected.erase(expected.begin(), expected.upper_bound(step));
    EXPECT_EQ(rest, expected) << "from step " << step;
  }
}

// Shards have an order of their own, in whose steps slots are sorted by block; the laws are the same.
TEST(Planner, batches_of_shards_depend_on_their_blocks_and_on_nothing_else) {
  const comm::Communicator world(MPI_COMM_WORLD);
  const comm::Communicator alone(MPI_COMM_SELF);
  PlannerOptions options = options_for(403, 24);
  options.shards = {{150, 20}, {3, 20}, {250, 50}};
  options.pool_rows = 100;
  const Batches whole = run(alone, options, {}, {1});
  EXPECT_EQ(run(world, options, {}, unequal(world.size())), whole);
  std::set<std::uint64_t> seen;
  for (int step = 1; step <= 17; ++step) seen.insert(whole.at(step).begin(), whole.at(step).end());
  EXPECT_EQ(seen.size(), 403u);

  Batches rest = whole;
  rest.erase(rest.begin(), rest.upper_bound(6));
  EXPECT_EQ(run(world, options, {1, 6 * 24, 6}, unequal(world.size())), rest);

  options.pool_rows = 200;
  EXPECT_NE(run(world, options, {}, unequal(world.size())), whole);
  options.unshuffled_epochs = 2;
  EXPECT_EQ(run(world, options, {}, unequal(world.size())).at(1).at(5), 5u);
}

TEST(Planner, stops_at_the_last_step_and_keeps_the_order_when_told) {
  const comm::Communicator world(MPI_COMM_WORLD);
  PlannerOptions options = options_for(30, 8);
  options.max_step = 5;
  options.unshuffled_epochs = 1;
  const Batches batches = run(world, options, {}, unequal(world.size()));
  ASSERT_EQ(batches.size(), 5u);
  EXPECT_EQ(batches.at(2), (std::vector<std::uint64_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_NE(batches.at(5), (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(total_steps(options), 5);
}

TEST(Planner, fewer_samples_than_ranks_leave_some_ranks_without_work) {
  const comm::Communicator world(MPI_COMM_WORLD);
  const Batches batches =
      run(world, options_for(2, 64), {}, std::vector<double>(static_cast<std::size_t>(world.size()), 1));
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches.at(1).size(), 2u);
}

TEST(Planner, shares_come_from_the_rule_step_by_step) {
  const comm::Communicator world(MPI_COMM_WORLD);
  PlannerOptions options = options_for(1000, 30);
  options.max_epoch = 1;
  Planner planner(world, options, {});
  std::vector<std::int64_t> asked;
  // Rank 0 gets all of the first step of a window and none of the others, which the last rank gets.
  const ShareRule rule = [&](const StepPlan& step, std::int64_t step_in_window) {
    asked.push_back(step_in_window);
    std::vector<std::int64_t> shares(static_cast<std::size_t>(world.size()), 0);
    (step_in_window == 0 ? shares.front() : shares.back()) = step.batch;
    return shares;
  };
  while (const auto window = planner.next(rule)) {
    for (std::size_t i = 0; i < window->steps.size(); ++i) {
      const StepPlan& step = window->steps[i];
      const int owner = i == 0 ? 0 : world.size() - 1;
      EXPECT_EQ(step.n, world.rank() == owner ? step.batch : 0);
      EXPECT_EQ(step.active, 1);
    }
  }
  if (world.rank() == 0) {
    EXPECT_EQ(asked.size(), 34u);
    EXPECT_EQ(std::count(asked.begin(), asked.end(), 0), 9) << "windows of 4 steps";
  } else {
    EXPECT_TRUE(asked.empty());
  }
}

TEST(Planner, windows_are_short_at_first_when_shares_are_to_settle_and_the_batches_stay_the_same) {
  const comm::Communicator world(MPI_COMM_WORLD);
  PlannerOptions options = options_for(500, 10);
  const Batches plain = run(world, options, {}, unequal(world.size()));
  options.ramp = true;
  EXPECT_EQ(run(world, options, {}, unequal(world.size())), plain);
  options.window = 16;
  Planner planner(world, options, {});
  std::vector<std::size_t> lengths;
  while (const auto window = planner.next(unequal(world.size()))) lengths.push_back(window->steps.size());
  // 50 steps an epoch: windows do not reach into the next.
  EXPECT_EQ(lengths, (std::vector<std::size_t>{2, 2, 4, 4, 8, 8, 16, 6, 16, 16, 16, 2}));
}

}  // namespace
}  // namespace motley::train
