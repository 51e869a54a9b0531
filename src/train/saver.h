// What a training run puts into checkpoints, and how it gets it back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

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
  Saver(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
        Optimizer* optimizer);

  // Continues from --restore-file, or from the newest good checkpoint of --save-dir; nothing when there is
  // none. An imported checkpoint has no optimizer state: the optimizer's is left as it is.
  // Parameters and optimizer state are then those of the checkpoint on every rank. What differs between the
  // run that wrote it and this one, and changes the mathematics, is warned of. `best` says by which metric
  // the best is judged now. Collective.
  struct Restored {
    std::filesystem::path path;
    Position position;
    Best best;
  };
  std::optional<Restored> restore(const PlannerOptions& planner, const Best& best);

  // Checkpoints hold the state of the load balance, of the loss scale and the number of skipped steps from here on; when
  // this run continues another, it goes on with those of that one. Collective.
  void keep(LoadBalance& balance, LossScale& loss_scale, BadSteps& bad_steps);

  // Begins a new run with the parameters of --init-from; parts of the network that are absent there keep
  // the values that they have. Collective.
  void begin_from_source();

  // Points `best` at its checkpoint again, on rank 0 alone: a run that was killed may not have come to it,
  // and retention goes by the link.
  void repair_best(const Best& best) const;

  // Writes the checkpoint of this step, in place of one that is already there, and removes those that need
  // not be kept. A failure is warned of, and its reason returned: nothing when the checkpoint stands.
  // Collective.
  std::string save(const Position& position, const Best& best, const PlannerOptions& planner, bool epoch_end,
                   bool interval);

 private:
  void take_staging(std::size_t arenas);
  std::string read_on_root(const PlannerOptions& planner, const Best& best);
  void warn_of_changes(const Json& trainer, const PlannerOptions& planner) const;
  void tidy_up(const std::filesystem::path& checkpoint, bool is_best) const;

  const TrainOptions& options_;
  const comm::Communicator& world_;
  Backend& backend_;
  Task& task_;
  Optimizer* optimizer_;
  LoadBalance* balance_ = nullptr;
  LossScale* loss_scale_ = nullptr;
  BadSteps* bad_steps_ = nullptr;
  Json found_balance_, found_loss_scale_, found_bad_steps_;  // on rank 0, of the checkpoint that is continued
  std::string found_where_;
  // Parameters and optimizer state on their way from rank 0 to the others: members, because MPI may still
  // write to them when a deadline has passed.
  std::vector<std::vector<float>> staging_;
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
