// What a training run puts into checkpoints, and how it gets it back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "comm/communicator.h"
#include "core/json.h"
#include "train/bad_steps.h"
#include "train/judge.h"
#include "train/load_balance.h"
#include "train/loss_scale.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/planner.h"
#include "train/task.h"

namespace motley::train {

class Saver {
 public:
  // Why a checkpoint is written, and what is still to be done at its step.
  struct Reasons {
    bool epoch_end = false, interval = false;
    bool validation_due = false;  // the run was stopped before it had judged it
  };

  Saver(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
        Optimizer* optimizer);

  // Continues from --restore-file, or from the newest good checkpoint of --save-dir; nothing when there is
  // none, or when all are bad and --restart-from-scratch was given. An imported checkpoint has no optimizer state: the
  // optimizer's is left as it is. Parameters and optimizer state are then those of the checkpoint on every rank.
  // AgreedError(usage) when something that changes the mathematics differs between the run that wrote it and this one, unless
  // --allow-changed-options was given. `best` says by which metric the best is judged now. Collective.
  struct Restored {
    std::filesystem::path path;
    Position position;
    Best best;
    Reasons why;
  };
  std::optional<Restored> restore(const PlannerOptions& planner, const Best& best);

  // Checkpoints hold the state of the load balance, of the loss scale and the number of skipped steps from here on; when
  // this run continues another, it goes on with those of that one. Collective.
  void keep(LoadBalance& balance, LossScale& loss_scale, BadSteps& bad_steps);

  // Begins a new run with the parameters of --init-from; parts of the network that are absent there keep
  // the values that they have. Collective.
  void begin_from_source();

  // Renames the bad checkpoints that restore() has passed over, on rank 0 alone.
  void set_bad_aside() const { checkpoint::set_aside(options_.save.save_dir, searched_); }

  // Points `best` at its checkpoint again, on rank 0 alone: a run that was killed may not have come to it,
  // and retention goes by the link.
  void repair_best(const Best& best) const;

  // Copies the state of this step into host memory and begins to write its checkpoint, in place of one that is already
  // there, in a thread of its own, which then removes those that need not be kept. A failure is warned of. The one before
  // must be finished.
  void begin(const Position& position, const Best& best, const PlannerOptions& planner, const Reasons& why);
  // Waits for the checkpoint that was begun last; once for each. Collective.
  struct Written {
    std::string failure;  // nothing when the checkpoint stands
    double seconds = 0;   // from begin() to the end of writing
    double waited_s = 0;  // of that, in this call
  };
  Written finish();

 private:
  void take_staging(std::size_t arenas);
  std::filesystem::path find_on_root();
  std::string read_on_root(const PlannerOptions& planner, const Best& best);
  void check_changes(const std::filesystem::path& checkpoint, const Json& trainer,
                     const PlannerOptions& planner) const;
  std::string changes_of_options(const Json& trainer, const PlannerOptions& planner) const;
  checkpoint::Contents contents_of(const Position& position, const Best& best, const PlannerOptions& planner,
                                   const Reasons& why);
  std::string write(const checkpoint::Contents& contents, std::int64_t step, bool is_best) const;
  void tidy_up(const std::filesystem::path& checkpoint, bool is_best) const;

  const TrainOptions& options_;
  const comm::Communicator& world_;
  Backend& backend_;
  Task& task_;
  Optimizer* optimizer_;
  LoadBalance* balance_ = nullptr;
  LossScale* loss_scale_ = nullptr;
  BadSteps* bad_steps_ = nullptr;
  checkpoint::Search searched_;                              // on rank 0
  Json found_balance_, found_loss_scale_, found_bad_steps_;  // on rank 0, of the checkpoint that is continued
  std::string found_where_;
  // Parameters and optimizer state on their way from rank 0 to the others: members, because MPI may still
  // write to them when a deadline has passed.
  std::vector<std::vector<float>> staging_;

  // The state that is being written, on rank 0: parameters, then optimizer state. Kept for the next one.
  std::vector<std::vector<float>> snapshot_;
  double begun_s_ = 0;
  std::future<Written> writing_;  // last: its destructor waits for what uses the others
};

// The parameters of a checkpoint on every rank, for evaluation.
class ParameterRestorer {
 public:
  struct Found {
    std::filesystem::path path;
    Position position;
    std::vector<double> shares;  // that its run had in the end; empty where they followed no measurement
  };
  // Reads on rank 0 and sends to all. Collective.
  Found restore(const std::string& save_dir, const std::string& restore_file, const comm::Communicator& world,
                Backend& backend, Task& task);

 private:
  std::vector<float> staging_;  // as Saver's
};

}  // namespace motley::train
