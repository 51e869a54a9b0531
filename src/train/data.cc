#include "train/data.h"

#include <algorithm>
#include <filesystem>

#include "comm/agree.h"
#include "core/error.h"
#include "core/log.h"

namespace motley::train {

std::string subset_path(const std::string& data, const std::string& subset) {
  std::error_code error;
  if (!std::filesystem::exists(data, error))
    fail(ExitCode::input, "--data {} does not exist; expected a directory", data);
  if (!std::filesystem::is_directory(data, error)) {
    fail(ExitCode::input, "--data {} is not a directory; expected the one that holds {}.h5", data, subset);
  }
  return (std::filesystem::path(data) / (subset + ".h5")).string();
}

DataSet open_data(const Task& task, const std::string& subset, const std::string& path,
                  const comm::Communicator& world) {
  DataSet set;
  set.subset = subset;
  std::string description;
  comm::agree_on_root(world, "opening the data", [&] { description = task.open(path).to_json(); });
  set.source = io::RowSource::from_json(world.broadcast(description, 0, "the description of the data"));
  const auto ranks = static_cast<std::uint64_t>(world.size());
  const auto rank = static_cast<std::uint64_t>(world.rank());
  const std::uint64_t first = set.source.rows / ranks * rank + std::min(rank, set.source.rows % ranks);
  const std::uint64_t count = set.source.rows / ranks + (rank < set.source.rows % ranks ? 1 : 0);
  comm::agree(world, "checking the data", [&] { task.check(set.source, first, count); });
  set.reader = std::make_unique<io::WindowReader>(set.source, world.handle(), world.timeout_s());
  if (!set.source.packed()) {
    log::info(
        "{} is chunked or compressed: reading it at random is slow. A contiguous copy (h5repack -l CONTI) "
        "is read much faster.",
        path);
  }
  return set;
}

}  // namespace motley::train
