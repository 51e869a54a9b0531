#include "io/bert_set.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "io/bert_packed.h"
#include "io/bert_shard_header.h"
#include "io/hdf5.h"

namespace motley::io {
namespace {

namespace fs = std::filesystem;

bool is_hdf5_name(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h5" || extension == ".hdf5";
}

std::vector<std::string> hdf5_files(const fs::path& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (is_hdf5_name(entry->path()) && !entry->is_directory(error)) files.push_back(entry->path().string());
  }
  if (error) fail(ExitCode::input, "cannot look into {}: {}", directory.string(), error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) items.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

bool names_another_subset(const std::string& file, const std::string& subset,
                          const std::vector<std::string>& others) {
  const std::string stem = fs::path(file).stem().string();
  if (stem == subset) return false;
  constexpr std::string_view usual[] = {"valid", "validation", "dev", "test"};
  return std::find(std::begin(usual), std::end(usual), stem) != std::end(usual) ||
         std::find(others.begin(), others.end(), stem) != others.end();
}

std::vector<std::string> find_in_directory(const fs::path& directory, const std::string& subset,
                                           const std::vector<std::string>& others) {
  std::error_code error;
  const fs::path file = directory / (subset + ".h5"), folder = directory / subset;
  if (fs::exists(file, error)) return {file.string()};
  if (fs::is_directory(folder, error)) {
    std::vector<std::string> files = hdf5_files(folder);
    if (files.empty())
      fail(ExitCode::input, "{} has no HDF5 files; expected names that end in .h5 or .hdf5", folder.string());
    return files;
  }
  if (subset != "train") return {};
  std::vector<std::string> files = hdf5_files(directory);
  std::erase_if(files, [&](const std::string& name) { return names_another_subset(name, subset, others); });
  return files;
}

}  // namespace

std::vector<std::string> find_bert_subset(const std::string& data, const std::string& subset,
                                          const std::vector<std::string>& others) {
  std::error_code error;
  if (fs::is_directory(data, error)) return find_in_directory(data, subset, others);
  const bool exists = fs::exists(data, error);
  if (!exists && data.find(',') == std::string::npos) {
    fail(ExitCode::input,
         "--data {} does not exist; expected a directory, an HDF5 file or several with commas "
         "between them",
         data);
  }
  if (subset != "train") return {};
  return exists ? std::vector<std::string>{data} : split(data);
}

std::vector<std::string> bert_subset_paths(const std::string& data, const std::string& subset,
                                           const std::vector<std::string>& others) {
  std::vector<std::string> paths = find_bert_subset(data, subset, others);
  if (!paths.empty()) return paths;
  std::error_code error;
  if (!fs::is_directory(data, error))
    fail(ExitCode::input, "--data {} is not a directory, so it has no subset {}; files are the subset train",
         data, subset);
  const fs::path directory(data);
  fail(ExitCode::input, "{} has no subset {}; expected {} or {} with HDF5 files{}", data, subset,
       (directory / (subset + ".h5")).string(), (directory / subset).string(),
       subset == "train" ? ", or HDF5 files in the directory itself" : "");
}

namespace {

void check_length(const std::string& path, std::int64_t seq_length, const BertLimits& limits) {
  if (limits.max_position > 0 && seq_length > limits.max_position) {
    fail(ExitCode::input, "{}: `input_ids` has samples of {} tokens; the network takes at most {}", path,
         seq_length, limits.max_position);
  }
}

// What differs from the first file, if anything.
void expect_like(const std::string& path, const BertShardHeader& shard, const std::string& first,
                 const BertLayout& layout) {
  if (shard.seq_length != layout.seq_length) {
    fail(ExitCode::input,
         "{}: `input_ids` has samples of {} tokens, and those of {} have {}; expected one sequence "
         "length in a run",
         path, shard.seq_length, first, layout.seq_length);
  }
  if (shard.predictions != layout.predictions) {
    fail(ExitCode::input,
         "{}: `masked_lm_positions` has {} positions per sample, and {} has {} (0: none at all); "
         "expected as many in a run",
         path, shard.predictions, first, layout.predictions);
  }
}

Field samples_field(const BertLayout& layout) {
  return {"samples", DType::u8, Shape{static_cast<std::int64_t>(layout.row_bytes())}, true, 0, {}};
}

RowSource describe_packed(hid_t file, const std::string& path, const BertLimits& limits) {
  const PackedBert packed = describe_packed_bert(file, path);
  check_length(path, packed.layout.seq_length, limits);
  RowSource source;
  source.path = path;
  source.rows = packed.rows;
  source.fields = {samples_field(packed.layout)};
  source.fields[0].file_offset = packed.info.file_offset;
  source.bert = packed.layout;
  source.limits = limits;
  return source;
}

}  // namespace

RowSource describe_bert_set(const std::vector<std::string>& paths, std::int64_t num_file,
                            const BertLimits& limits) {
  MOTLEY_CHECK(!paths.empty());
  const std::size_t count =
      num_file > 0 ? std::min(paths.size(), static_cast<std::size_t>(num_file)) : paths.size();
  RowSource source;
  source.limits = limits;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& path = paths[i];
    const Hdf5Lock lock;
    const Hdf5Handle file = open_hdf5(path);
    if (has_packed_bert(file.get())) {
      if (count == 1) return describe_packed(file.get(), path, limits);
      fail(ExitCode::input, "{} is a packed file, and one of {}; expected one packed file alone, or shards",
           path, count);
    }
    const BertShardHeader shard = describe_bert_shard(file.get(), path);
    if (!source.bert) {
      source.bert = {shard.seq_length, shard.predictions, id_type(limits.vocab_size)};
      check_length(path, shard.seq_length, limits);
    }
    expect_like(path, shard, paths[0], *source.bert);
    source.shards.push_back({path, shard.rows, shard.block_rows});
    source.rows += shard.rows;
  }
  source.path = count == 1 ? paths[0] : fmt::format("{} and {} more", paths[0], count - 1);
  source.fields = {samples_field(*source.bert)};
  source.fields[0].packed = false;
  source.fields[0].why_unpacked = "in shards";
  return source;
}

}  // namespace motley::io
