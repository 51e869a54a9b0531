// One training step: forward and backward passes over this rank's share as micro-batches, the sum over
// ranks, the optimizer's step. How gradients of ranks come together is decided here:
//
//   exact      summed over samples and ranks, divided once by the count over the global batch (law 2);
//   published  --policy dp and edp: every rank's mean gradient, averaged over ranks as the papers do it
//              (balance::published_gradient_weight);
//   local      --local-steps K: every rank steps alone on the mean gradient of its share, and at each K-th step
//              parameters and optimizer state are averaged, weighted by the samples that each rank had since
//              the last time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "balance/balancer.h"
#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "comm/small_sum.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "train/bad_steps.h"
#include "train/batch_statistics.h"
#include "train/loss_scale.h"
#include "train/micro_batches.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/planner.h"
#include "train/region.h"
#include "train/task.h"
#include "train/update.h"

namespace motley::train {

// Seconds of this rank.
struct StepTimes {
  RegionTimes region;
  double wait_s = 0;  // blocked on other ranks
};

struct StepOutcome {
  // Of the global batch. Local steps: of this rank's share, until average() gives those of all steps and
  // ranks.
  std::span<const double> sums;
  double divisor = 0;                 // of the summed gradient, the loss scale included
  double grad_norm = 0;               // of the mean gradient, before clipping
  // Loss and gradient. When they are not, parameters were left alone: on all ranks, or, of local steps, on this one.
  // Of average(): all steps of all ranks since the last one.
  bool finite = true;
  bool own_loss_finite = true;  // of this rank's share, before anything was summed over ranks
  bool hopeless = false;        // too many steps in a row were not finite
  bool stop = false;            // some rank wants to stop; of local steps, known at the average
  StepTimes times;
};

class Stepper {
 public:
  // All but the communicator must be allocated and outlive this object. `reducer` sums arenas as long as the
  // task's, `statistics` those of batch norm where they are of global batches; null with one rank.
  Stepper(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
          Optimizer& optimizer, MicroBatches& micro_batches, LossScale& loss_scale, BadSteps& bad_steps,
          std::unique_ptr<comm::GradientReducer> reducer, std::unique_ptr<comm::SmallSum> statistics);

  bool local() const { return options_.batch.local_steps > 1; }

  // The window that the steps which follow belong to; both must live until the next call. Sums over ranks
  // what the task has to know of a step before its backward pass. Collective. Returns the seconds that it
  // waited for other ranks.
  double begin_window(const WindowPlan& window, const io::RowSource& source, const io::Window& rows);
  // The next step of the window. Collective, but for local steps.
  // `stop`: this rank wants the run to stop after it.
  StepOutcome run(double lr, bool stop = false);
  // Local steps: brings the ranks together. `sums` are then those of all steps since the last time, over
  // all ranks, but for those that were not finite. Collective.
  StepOutcome average(bool stop = false);
  // Whether there were local steps since the last average; the same on every rank.
  bool apart() const { return apart_; }
  // Running statistics of batch norm that each rank has of its own rows (--no-sync-bn): their mean over ranks, weighted by
  // the samples that each has had since the last time, takes their place. Collective. Returns the seconds that it waited.
  double combine_statistics();

 private:
  double count_totals();
  void run_share(const StepPlan& plan);
  void run_micro_batches(const StepPlan& plan, const std::vector<std::int64_t>& sizes);
  void run_whole_share(const StepPlan& plan);
  bool can_begin_again() const;
  void begin_again();
  [[noreturn]] void fail_whole_share(const StepPlan& plan, const OutOfMemory& why) const;
  // Samples [first, first + n) of the share.
  void run_micro_batch(const StepPlan& plan, std::int64_t first, std::int64_t n, const GradientsDone& done);
  GradientsDone release();
  bool has_own_statistics() const { return !whole_shares_ && statistics_before_.bytes() > 0; }
  void copy_statistics(ConstView from, View to);
  void keep_statistics();
  void restore_statistics();
  std::span<const double> totals_of_step() const;
  double loss_factor(const StepPlan& plan) const;
  float gradient_weight(const StepPlan& plan) const;
  void update(const StepPlan& plan, double lr, StepOutcome& outcome);
  bool note(bool finite);
  std::int64_t optimizer_step(const StepPlan& plan) const;
  void note_local_step(const StepPlan& plan, const StepOutcome& outcome);
  double average_arena(View arena, double weight);

  const TrainOptions& options_;
  const comm::Communicator& world_;
  Backend& backend_;
  Task& task_;
  Optimizer& optimizer_;
  MicroBatches& micro_batches_;
  LossScale& loss_scale_;
  BadSteps& bad_steps_;
  balance::PolicyKind policy_;
  ComputeRegion region_;
  std::unique_ptr<comm::GradientReducer> reducer_;

  // Batch norm over global batches: shares are run whole. Over the rows at hand: what the mean of running statistics over
  // ranks is weighted by.
  bool whole_shares_ = false;
  std::unique_ptr<BatchStatistics> statistics_;
  Buffer statistics_before_;  // the running statistics before the step
  double own_samples_ = 0;
  bool uncombined_ = false;

  Update update_;
  std::vector<double> host_sums_;

  const WindowPlan* window_ = nullptr;
  const io::RowSource* source_ = nullptr;
  const io::Window* rows_ = nullptr;
  std::size_t next_step_ = 0;
  std::int64_t first_row_ = 0;
  // Step by step, of the global batches of the window and of this rank's shares of them; and what counting
  // the latter took per step.
  std::vector<double> totals_, own_totals_;
  double count_s_ = 0;

  // Local steps, since the last average.
  bool apart_ = false;
  std::int64_t local_skips_ = 0;
  double local_samples_ = 0;
  std::vector<double> local_sums_;
};

}  // namespace motley::train
