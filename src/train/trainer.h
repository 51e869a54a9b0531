// The training loop: plans windows, reads them, runs their steps (train/stepper.h), reports, judges and
// saves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/heartbeat.h"
#include "core/clock.h"
#include "core/stop_signal.h"
#include "kernels/backend.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/summary.h"
#include "train/bad_steps.h"
#include "train/data.h"
#include "train/device.h"
#include "train/drift.h"
#include "train/judge.h"
#include "train/load_balance.h"
#include "train/loss_scale.h"
#include "train/memory_limit.h"
#include "train/meter.h"
#include "train/micro_batches.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/planner.h"
#include "train/saver.h"
#include "train/stepper.h"
#include "train/stop_clock.h"
#include "train/task.h"

namespace motley::train {

// What an observer (a test, say) may look at after a step, on every rank.
struct StepResult {
  std::int64_t step = 0;
  double loss = 0;       // mean over the global batch; of local steps over this rank's share, as what follows
  double count = 0;      // what the summed gradient was divided by
  double grad_norm = 0;  // of the mean gradient, before clipping
  ConstView gradients;   // the summed gradient arena
  std::int64_t n = 0;    // this rank's share, and the micro-batches that it ran as
  std::size_t micro_batches = 0;
};
using StepObserver = std::function<void(const StepResult&)>;

// Asked between steps: the signal that this rank was sent, 0 for none. By itself noted_stop_signal().
using SignalSource = std::function<int()>;

using TaskMaker = std::function<std::unique_ptr<Task>(const TrainOptions&)>;

class Trainer {
 public:
  // `maker` makes the task, on every rank.
  Trainer(const TrainOptions& options, const comm::Communicator& world, TaskMaker maker = make_task);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  void observe(StepObserver observer) { observer_ = std::move(observer); }
  void listen(SignalSource signals) { signals_ = std::move(signals); }
  // Opens data, builds the model and restores a checkpoint; --save-dir is touched last, when all else is in
  // order. Collective. What is wrong with data or options is an AgreedError on every rank.
  void prepare();
  // Trains to the end; prepares first when that has not been done. AgreedError(checkpoint) when the last
  // checkpoint could not be written, AgreedError(stopped) when the run has saved and stopped before its end, on a signal or
  // because its time was up.
  void run();

  const ParameterStore& parameters() const { return task_->parameters(); }
  // Of this rank, once prepared.
  Backend& backend() const { return *backend_; }

 private:
  void open_train_data();
  void build();
  void settle_cuda_graph();
  void warn_of_slow_precision() const;
  std::int64_t largest_batch() const;  // of any step
  void try_share();
  void start_or_continue();
  void limit_shares();
  void open_outputs();
  // read_s and waited_s: what reading and planning of the window cost this rank before its first step.
  void run_window(const WindowPlan& window, double read_s, double waited_s);
  // `samples`: ids of this rank's share.
  void run_step(const StepPlan& plan, std::span<const std::uint64_t> samples, double read_s, double waited_s,
                bool window_ends);
  // What is due after a step.
  struct Due {
    bool interval = false, epoch_save = false, validation = false;
    bool any() const { return interval || epoch_save || validation; }
  };
  Due due_after(const StepPlan& plan) const;
  void bring_together();
  void note_bad_step(const StepPlan& plan, std::span<const std::uint64_t> samples,
                     const StepOutcome& outcome);
  void tell_of_bad_step(const BadStep& own, const StepOutcome& outcome, const std::string& what);
  void open_skipped_file();
  void verify_parameters();
  // Brings the times and sums of the steps since the last call together when a line is due, or when told to.
  void report(bool collect, const StepPlan& plan, double lr);
  void after_step(const StepPlan& plan, bool window_ends);
  void flush_interval();
  void combine_statistics();
  void validate();
  bool begin_with_validation();
  void save(const Saver::Reasons& why);
  void complete_save(bool next_is_due = false);
  // `complete`: all steps of the run are done.
  void finish(bool complete);
  bool wants_to_stop();
  void warn_of_slow_checkpoints(std::int64_t step);
  std::string why_stopped() const;
  [[noreturn]] void end_stopped();

  TrainOptions options_;
  const comm::Communicator& world_;
  TaskMaker make_task_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Task> task_;
  DataSet train_data_;
  std::unique_ptr<Judge> judge_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Saver> saver_;
  std::unique_ptr<MicroBatches> micro_batches_;
  std::unique_ptr<LoadBalance> balance_;
  LossScale loss_scale_;
  BadSteps bad_steps_;
  BadStep local_bad_steps_;  // of this rank, since the last average
  std::unique_ptr<DriftCheck> drift_;
  std::unique_ptr<Stepper> stepper_;
  PlannerOptions planner_options_;
  Position position_;
  double grad_norm_ = 0;
  std::string devices_text_;    // of all ranks
  MemoryLimits memory_limits_;  // of this rank, by --memory-limit, and the one that holds now
  std::optional<std::size_t> memory_limit_;

  StepMeter meter_{0};
  report::StepRecord interval_;
  report::Summary summary_;
  std::unique_ptr<report::MetricsFile> metrics_file_;  // rank 0 only
  std::unique_ptr<report::MetricsFile> skipped_file_;  // rank 0 only, and only when there is something in it
  std::unique_ptr<report::Progress> progress_;         // rank 0 only
  StepObserver observer_;
  std::unique_ptr<comm::Heartbeat> heartbeat_;  // of a run

  std::string save_failure_;   // why the newest checkpoint was not written, if it was not
  bool whole_shares_ = false;  // batch norm over global batches: a share is one micro-batch
  bool crowded_ = false;       // some host has fewer processors than its ranks have threads
  bool stop_ = false;          // the end has come
  bool asked_to_stop_ = false;  // before it
  bool validation_due_ = false;
  SignalSource signals_ = noted_stop_signal;
  double started_s_ = now_s();
  StopClock stop_clock_;
  bool warned_of_slow_checkpoints_ = false;
  double step_started_s_ = 0;
  std::int64_t started_step_ = 0, reported_step_ = 0;
  std::int64_t validated_step_ = -1, verified_step_ = 0;
  struct SavedStep {
    std::int64_t step = -1, best_step = -1;
    Saver::Reasons why;
  } saved_;                          // the newest checkpoint that this run wrote or came from
  std::optional<SavedStep> saving_;  // what is being written
};

}  // namespace motley::train
