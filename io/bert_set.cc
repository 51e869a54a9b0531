#include "io/bert_set.h"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "io/bert_packed.h"
#include "io/bert_shard_header.h"
#include "io/hdf5.h"
#include "io/hdf5_text.h"

namespace motley::io {
namespace {

namespace fs = std::filesystem;

// What a killed process leaves begins with a dot.
bool is_hdf5_name(const fs::path& path) {
  const std::string extension = path.extension().string();
  return (extension == ".h5" || extension == ".hdf5") && !path.filename().string().starts_with('.');
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

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Whether the name has `word` in it, without letters or digits right before or behind it.
bool has_word(std::string_view name, std::string_view word) {
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !is_letter_or_digit(name[at - 1]);
    const bool ends = end == name.size() || !is_letter_or_digit(name[end]);
    if (begins && ends) return true;
  }
  return false;
}

std::vector<std::string> words_for(const std::string& subset) {
  if (subset == "train") return {"train", "training"};
  if (subset == "valid") return {"valid", "validation", "dev"};
  return {subset};
}

bool has_any_word(const std::string& file, const std::vector<std::string>& words) {
  const std::string stem = fs::path(file).stem().string();
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return has_word(stem, word); });
}

// Of files named NAME-k-of-N, as `motley data bert` names them, there must be N: it gives them their names
// last, and may have been killed meanwhile.
void expect_all_of(const fs::path& directory, const std::vector<std::string>& files) {
  static const std::regex form("(.*)-([0-9]{1,9})-of-([0-9]{1,9})");
  std::map<std::pair<std::string, unsigned long>, std::set<unsigned long>> found;
  for (const std::string& file : files) {
    const std::string stem = fs::path(file).stem().string();
    std::smatch match;
    if (std::regex_match(stem, match, form))
      found[{match[1], std::stoul(match[3])}].insert(std::stoul(match[2]));
  }
  for (const auto& [name, indices] : found) {
    if (indices.size() >= name.second) continue;
    fail(ExitCode::input,
         "{} has {} of the {} files {}-...-of-{}; expected all: what made them was interrupted, or some were "
         "removed",
         directory.string(), indices.size(), name.second, name.first, name.second);
  }
}

// As bert_set.h says; empty when there are none.
std::vector<std::string> named_in_directory(const fs::path& directory, const std::string& subset,
                                            const std::vector<std::string>& others) {
  const std::vector<std::string> all = hdf5_files(directory), own = words_for(subset);
  std::vector<std::string> files;
  std::copy_if(all.begin(), all.end(), std::back_inserter(files),
               [&](const std::string& file) { return has_any_word(file, own); });
  if (!files.empty() || subset != "train") return files;
  std::vector<std::string> foreign = {"valid", "validation", "dev", "test", "eval"};
  for (const std::string& other : others) {
    if (other != subset) foreign.push_back(other);
  }
  std::copy_if(all.begin(), all.end(), std::back_inserter(files),
               [&](const std::string& file) { return !has_any_word(file, foreign); });
  return files;
}

std::vector<std::string> find_in_directory(const fs::path& directory, const std::string& subset,
                                           const std::vector<std::string>& others) {
  std::error_code error;
  for (const char* extension : {".h5", ".hdf5"}) {
    const fs::path file = directory / (subset + extension);
    if (fs::exists(file, error) && !fs::is_directory(file, error)) return {file.string()};
  }
  const fs::path folder = directory / subset;
  const bool has_folder = fs::is_directory(folder, error);
  std::vector<std::string> files =
      has_folder ? hdf5_files(folder) : named_in_directory(directory, subset, others);
  if (has_folder && files.empty())
    fail(ExitCode::input, "{} has no HDF5 files; expected names that end in .h5 or .hdf5", folder.string());
  expect_all_of(has_folder ? folder : directory, files);
  return files;
}

// The files of a list with commas between them. What is not there is said by whoever opens it.
std::vector<std::string> listed_files(const std::string& data) {
  std::vector<std::string> files = split(data);
  if (files.empty()) fail(ExitCode::input, "--data \"{}\" names no file; expected one before a comma", data);
  std::map<std::pair<dev_t, ino_t>, std::string> known;
  for (const std::string& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0) continue;
    const auto [same, fresh] = known.emplace(std::pair(status.st_dev, status.st_ino), file);
    if (!fresh) {
      fail(ExitCode::input, "--data has the same file twice, as {} and as {}; expected each once",
           same->second, file);
    }
  }
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
  std::vector<std::string> files = exists ? std::vector<std::string>{data} : listed_files(data);
  return subset == "train" ? files : std::vector<std::string>{};
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
  fail(ExitCode::input,
       "{} has no subset {}; expected {}, HDF5 files in {}, or some with \"{}\" in their names{}", data,
       subset, (directory / (subset + ".h5")).string(), (directory / subset).string(),
       fmt::join(words_for(subset), "\" or \""),
       subset == "train" ? ", or some that are not named after another subset" : "");
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

// Every block is shuffled by itself, and takes memory on every rank for that. A lying file claims any number.
constexpr std::uint64_t most_blocks = 1 << 24;

void count_blocks(const std::string& path, const BertShardHeader& shard, std::uint64_t& blocks) {
  const std::uint64_t more = (shard.rows - 1) / shard.block_rows + 1;
  if (more > most_blocks - blocks) {
    fail(ExitCode::input,
         "{} has {} samples in blocks of {}, which makes more than {} blocks in all; expected fewer, or a "
         "file of `motley data pack`",
         path, shard.rows, shard.block_rows, most_blocks);
  }
  blocks += more;
}

// All files that say which vocabulary their ids count through must say the same. `named` is the first that
// does.
void note_vocabulary(hid_t file, const std::string& path, RowSource& source, std::string& named) {
  const std::string fingerprint = read_text_attribute(file, path, vocabulary_attribute);
  if (fingerprint.empty()) return;
  if (source.vocab_xxh3.empty()) {
    source.vocab_xxh3 = fingerprint;
    named = path;
  }
  if (fingerprint != source.vocab_xxh3) {
    fail(ExitCode::input,
         "{} and {} were made with different vocabularies (their `{}` are {} and {}); expected one in a run",
         named, path, vocabulary_attribute, source.vocab_xxh3, fingerprint);
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
  source.vocab_xxh3 = read_text_attribute(file, path, vocabulary_attribute);
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
  std::uint64_t blocks = 0;
  std::string names_vocabulary;
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
    count_blocks(path, shard, blocks);
    note_vocabulary(file.get(), path, source, names_vocabulary);
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
