// Rank 0 plans, everybody reads (law 6). A window is up to W consecutive steps of one epoch. For each, rank 0
// draws the sample ids of the global batch from the shuffled order (train/sample_order.h), divides its slots
// into shares, and scatters to every rank the slots and ids that are its own.
//
// The global batch of a step depends on (seed, epoch, position in the epoch) alone (law 1).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "io/sample_reader.h"
#include "train/sample_order.h"

namespace motley::train {

// Where a run is: everything that planning needs to continue it.
struct Position {
  int epoch = 1;             // counts from 1
  std::int64_t samples = 0;  // of this epoch that are done
  std::int64_t step = 0;     // steps done in the whole run
};

struct StepPlan {
  std::int64_t step = 0;  // counts from 1
  int epoch = 1;
  std::int64_t batch = 0;   // global batch: smaller for the last one of an epoch
  std::int64_t offset = 0;  // this rank's slots are [offset, offset + n)
  std::int64_t n = 0;
  std::int64_t active = 0;  // ranks with n > 0
  bool ends_epoch = false;
};

struct WindowPlan {
  std::vector<StepPlan> steps;
  std::vector<std::uint64_t> rows;  // sample ids of this rank, steps one after the other
};

// Where the rows of the window stand in the run.
std::vector<io::SlotRun> slot_runs(const WindowPlan& window);

// The shares of a step, one per rank, which sum to its batch. Asked on rank 0, step by step; step_in_window
// counts from 0.
using ShareRule = std::function<std::vector<std::int64_t>(const StepPlan& step, std::int64_t step_in_window)>;
// Shares in proportion to weights, one per rank.
ShareRule in_proportion(std::vector<double> weights);

struct PlannerOptions {
  const char* purpose = "training";  // named when a rank does not come for its plan
  std::uint64_t samples = 0;         // in the data set, at least 1
  std::uint64_t seed = 0;
  std::vector<ShardSize> shards = {};  // of data that is decoded block by block
  std::uint64_t pool_rows = 65536;     // --shuffle-pool
  std::function<std::int64_t(int epoch)> global_batch;
  std::int64_t window = 16;
  bool ramp = false;          // short windows at first (balance::ramped_window), so that shares settle soon
  int unshuffled_epochs = 0;  // the first epochs keep the order of the file (--curriculum)
  bool shuffle = true;        // false: never (validation)
  int max_epoch = 0;          // 0: no limit
  std::int64_t max_step = 0;  // 0: no limit
};

class Planner {
 public:
  Planner(const comm::Communicator& world, const PlannerOptions& options, const Position& start);

  // The next window, or nothing at the end of the run. Collective.
  std::optional<WindowPlan> next(const ShareRule& shares);
  // Seconds that rank 0 has spent drawing and dividing samples since the last call; 0 elsewhere.
  double take_drawing_s() { return std::exchange(drawing_s_, 0.0); }
  std::optional<WindowPlan> next(const std::vector<double>& weights) { return next(in_proportion(weights)); }

 private:
  std::vector<StepPlan> steps_of_next_window();
  std::vector<std::vector<std::uint64_t>> draw(const std::vector<StepPlan>& steps, std::int64_t first_sample,
                                               const ShareRule& rule);

  const comm::Communicator& world_;
  PlannerOptions options_;
  Position at_;
  std::int64_t windows_ = 0;  // planned so far
  double drawing_s_ = 0;
  std::optional<SampleOrder> order_;  // on rank 0
};

// Steps of one epoch, and of a whole run from its start (0: no limit known).
std::int64_t steps_per_epoch(const PlannerOptions& options, int epoch);
std::int64_t total_steps(const PlannerOptions& options);

}  // namespace motley::train
