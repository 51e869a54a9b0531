// Metrics of the current parameters on a data set, divided among the ranks as training is.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "train/data.h"
#include "train/micro_batches.h"
#include "train/region.h"
#include "train/task.h"

namespace motley::train {

struct EvaluateOptions {
  std::int64_t global_batch = 256;
  std::int64_t window = 16;
  std::vector<double> weights;            // one per rank, looked at on rank 0
  std::int64_t step = 0;                  // of the run: what --slow goes by
  MicroBatches* micro_batches = nullptr;  // of the task
  std::function<bool()> wants_to_stop = {};  // asked on every rank before each window
};

// Every sample of the set once, in its order in the file. Collective; the same result on every rank: nothing when some rank
// wanted to stop on the way.
// OutOfMemory, on this rank alone, when not even one sample at a time fits.
std::optional<Metrics> evaluate(Task& task, Backend& backend, DataSet& data, const comm::Communicator& world,
                                const EvaluateOptions& options, ComputeRegion& region);

}  // namespace motley::train
