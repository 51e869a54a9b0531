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

std::vector<ShardSize> shard_sizes(const io::RowSource& source) {
  std::vector<ShardSize> sizes;
  for (const io::Shard& shard : source.shards) sizes.push_back({shard.rows, shard.block_rows});
  return sizes;
}

std::optional<DataSet> open_subset(Task& task, const DataOptions& data, const std::string& subset,
                                   bool required, const comm::Communicator& world, const Use& use) {
  DataSet set;
  set.subset = subset;
  std::string description;
  comm::agree_on_root(world, "opening the data", [&] {
    if (required || task.has_subset(data, subset)) description = task.open(data, subset).to_json();
  });
  description = world.broadcast(description, 0, "the description of the data");
  if (description.empty()) return std::nullopt;
  set.source = io::RowSource::from_json(description);
  task.expect(set.source);
  const auto ranks = static_cast<std::uint64_t>(world.size());
  const auto rank = static_cast<std::uint64_t>(world.rank());
  const std::uint64_t first = set.source.rows / ranks * rank + std::min(rank, set.source.rows % ranks);
  const std::uint64_t count = set.source.rows / ranks + (rank < set.source.rows % ranks ? 1 : 0);
  comm::agree(world, "checking the data", [&] {
    io::check_reachable(set.source);
    task.check(set.source, first, count);
  });
  set.reader = io::make_reader(set.source, world.handle(), world.timeout_s(),
                               static_cast<std::uint64_t>(data.shuffle_pool),
                               use.training ? task.training_work(use.seed) : io::RowWork{});
  if (!set.source.shards.empty()) return set;
  for (const io::Field& field : set.source.fields) {
    if (field.packed) continue;
    log::info(
        "{}: `{}` is {}, so it is read through HDF5, which is slower than a contiguous, little-endian copy",
        set.source.path, field.name, field.why_unpacked);
  }
  return set;
}

}  // namespace motley::train
