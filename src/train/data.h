// Opening data sets on all ranks.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "io/window_reader.h"
#include "train/task.h"

namespace motley::train {

struct DataSet {
  std::string subset;  // "train"
  io::RowSource source;
  std::unique_ptr<io::WindowReader> reader;
};

// Rank 0 describes the file, every rank checks its part of the contents, then every rank opens it for
// reading. Collective; AgreedError(input) on every rank when anything is wrong anywhere.
DataSet open_data(const Task& task, const std::string& subset, const std::string& path,
                  const comm::Communicator& world);

// DIR/<subset>.h5; Error(input) when --data is not a directory.
std::string subset_path(const std::string& data, const std::string& subset);

}  // namespace motley::train
