// Opening data sets on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "io/sample_reader.h"
#include "train/options.h"
#include "train/sample_order.h"
#include "train/task.h"

namespace motley::train {

struct DataSet {
  std::string subset;  // "train"
  io::RowSource source;
  std::unique_ptr<io::SampleReader> reader;
};

// What a set is opened for: training does the task's work on its rows (Task::training_work), with this seed.
struct Use {
  bool training = false;
  std::uint64_t seed = 0;
};

// Rank 0 finds and describes the subset, every rank checks its part of the contents, then every rank opens it
// for reading. Nothing when it is not there and is not `required`. Collective; AgreedError on every rank when
// anything is wrong anywhere.
std::optional<DataSet> open_subset(Task& task, const DataOptions& data, const std::string& subset,
                                   bool required, const comm::Communicator& world, const Use& use = {});

// DIR/<subset>.h5; Error(input) when --data is not a directory.
std::string subset_path(const std::string& data, const std::string& subset);

// The sizes that the order of an epoch depends on.
std::vector<ShardSize> shard_sizes(const io::RowSource& source);

}  // namespace motley::train
