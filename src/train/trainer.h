// The training loop.
//
// A step: every rank runs its share of the global batch as micro-batches; gradients of the summed loss are
// summed over micro-batches and, bucket by bucket while the backward pass still runs, over ranks; the sum is
// divided once by the count over the whole global batch, clipped, and stepped. Every rank then holds the same
// parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "kernels/backend.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/summary.h"
#include "train/data.h"
#include "train/device.h"
#include "train/judge.h"
#include "train/meter.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/planner.h"
#include "train/region.h"
#include "train/saver.h"
#include "train/task.h"

namespace motley::train {

// What an observer (a test, say) may look at after a step, on every rank.
struct StepResult {
  std::int64_t step = 0;
  double loss = 0;       // mean over the global batch
  double count = 0;      // what the summed gradient was divided by
  double grad_norm = 0;  // of the mean gradient, before clipping
  ConstView gradients;   // the summed gradient arena
};
using StepObserver = std::function<void(const StepResult&)>;

class Trainer {
 public:
  Trainer(const TrainOptions& options, const comm::Communicator& world);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void observe(StepObserver observer) { observer_ = std::move(observer); }
  // Opens data, builds the model and restores a checkpoint; --save-dir is touched last, when all else is in
  // order. Collective. What is wrong with data or options is an AgreedError on every rank.
  void prepare();
  // Trains to the end; prepares first when that has not been done. AgreedError(checkpoint) when the last
  // checkpoint could not be written.
  void run();

  const ParameterStore& parameters() const { return task_->parameters(); }

 private:
  void open_train_data();
  void build();
  void warn_of_slow_precision() const;
  void start_or_continue();
  void open_outputs();
  // waited_s: what planning and reading of the window cost before its first step.
  void run_step(const StepPlan& plan, const io::Window& rows, std::int64_t first_row, double waited_s,
                bool window_ends);
  double run_micro_batches(const StepPlan& plan, const io::Window& rows, std::int64_t first_row);
  void count_totals(const WindowPlan& window, const io::Window& rows);
  double reduce_sums();
  void update(const StepPlan& plan, double lr);
  void report(bool window_ends, const StepPlan& plan, double lr);
  void after_step(const StepPlan& plan, bool window_ends);
  void flush_interval();
  void validate();
  void save(bool epoch_end, bool interval);
  void finish();

  TrainOptions options_;
  const comm::Communicator& world_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Task> task_;
  std::vector<double> weights_;  // one per rank: the proportions of the shares
  DataSet train_data_;
  std::unique_ptr<Judge> judge_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<comm::GradientReducer> reducer_;
  PlannerOptions planner_options_;
  Position position_;
  ComputeRegion region_;
  std::int64_t max_micro_batch_ = 0;

  Buffer small_;  // sums, sum of squares, count, scale and norm
  View sums_, sum_squares_, count_, scale_;
  std::vector<double> host_sums_;
  std::vector<double> totals_;  // of the global batches of the window at hand, step by step
  std::span<const double> step_totals_;
  double grad_norm_ = 0;

  StepMeter meter_{0};
  report::StepRecord interval_;
  report::Summary summary_;
  std::unique_ptr<report::MetricsFile> metrics_file_;  // rank 0 only
  std::unique_ptr<report::Progress> progress_;         // rank 0 only
  StepObserver observer_;

  std::string save_failure_;  // why the newest checkpoint was not written, if it was not
  bool crowded_ = false;  // some host has fewer processors than its ranks have threads
  bool stop_ = false;
  double step_started_s_ = 0;
  std::int64_t started_step_ = 0;
  std::int64_t validated_step_ = -1;
  struct {
    std::int64_t step = -1, best_step = -1;
    bool epoch_end = false, interval = false;
  } saved_;  // the newest checkpoint that this run wrote or came from
};

// One weight per rank: ones for --policy sync, --weights for static.
std::vector<double> share_weights(const BatchOptions& options, int ranks);

}  // namespace motley::train
