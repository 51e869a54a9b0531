// What a training run puts into checkpoints, and how it gets it back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/json.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/planner.h"
#include "train/task.h"

namespace motley::train {

// The best validation so far.
struct Best {
  double value = 0;
  std::int64_t step = -1;  // -1: none yet
};

class Saver {
 public:
  Saver(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
        Optimizer* optimizer);

  // Continues from --restore-file, or from the newest good checkpoint of --save-dir; nothing when there is
  // none. Parameters and optimizer state are then those of the checkpoint on every rank. Collective.
  struct Restored {
    std::filesystem::path path;
    Position position;
    Best best;
  };
  std::optional<Restored> restore();

  // Writes a checkpoint unless one of this step is already there. A failure is warned of and training goes
  // on; the return value says whether it worked. Collective.
  bool save(const Position& position, const Best& best, bool epoch_end, bool interval);

 private:
  Json trainer_state(const Position& position, const Best& best, bool epoch_end, bool interval) const;
  void warn_of_changes(const Json& trainer) const;

  const TrainOptions& options_;
  const comm::Communicator& world_;
  Backend& backend_;
  Task& task_;
  Optimizer* optimizer_;
};

// Reads the parameters of a checkpoint on rank 0 and sends them to all. For evaluation. Collective.
std::filesystem::path restore_parameters(const std::string& save_dir, const std::string& restore_file,
                                         const comm::Communicator& world, Backend& backend, Task& task);

}  // namespace motley::train
