// Metrics of the current parameters on a data set, divided among the ranks as training is.
#pragma once

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
};

// Every sample of the set once, in its order in the file. Collective; the same result on every rank.
// OutOfMemory, on this rank alone, when not even one sample at a time fits.
Metrics evaluate(Task& task, Backend& backend, DataSet& data, const comm::Communicator& world,
                 const EvaluateOptions& options, ComputeRegion& region);

}  // namespace motley::train
