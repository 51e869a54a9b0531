// Metrics of the current parameters on a data set, divided among the ranks as training is.
#pragma once

#include <vector>

#include "train/data.h"
#include "train/region.h"
#include "train/task.h"

namespace motley::train {

struct EvaluateOptions {
  std::int64_t global_batch = 256;
  std::int64_t max_micro_batch = 64;
  std::int64_t window = 16;
  std::vector<double> weights;  // one per rank
};

// Every sample of the set once, in its order in the file. Collective; the same result on every rank.
Metrics evaluate(Task& task, Backend& backend, DataSet& data, const comm::Communicator& world,
                 const EvaluateOptions& options, ComputeRegion& region);

}  // namespace motley::train
