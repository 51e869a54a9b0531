#include "train/stored_model.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/ranges.h>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "core/error.h"
#include "train/model_directory.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

constexpr ExitCode code = ExitCode::checkpoint;
constexpr int format_version = 1;

std::vector<io::SafetensorsEntry> entries_of(const std::vector<Parameter>& tensors, const std::string& prefix,
                                             float* arena) {
  std::vector<io::SafetensorsEntry> list;
  for (const Parameter& tensor : tensors) {
    io::SafetensorsEntry entry;
    entry.name = prefix + tensor.name;
    entry.dtype = DType::f32;
    entry.shape = tensor.shape;
    entry.data = arena + tensor.offset;
    list.push_back(entry);
  }
  return list;
}

}  // namespace

std::vector<io::SafetensorsEntry> entries_of(const ParameterStore& store, const std::string& prefix,
                                             float* arena) {
  return entries_of(store.all(), prefix, arena);
}

std::vector<io::SafetensorsEntry> model_entries_of(const ParameterStore& store, float* stored) {
  std::vector<io::SafetensorsEntry> list = entries_of(store.all(), "", stored);
  const std::vector<io::SafetensorsEntry> statistics = entries_of(store.all_statistics(), "", stored);
  list.insert(list.end(), statistics.begin(), statistics.end());
  return list;
}

fs::path find_checkpoint(const std::string& save_dir, const std::string& restore_file) {
  if (restore_file.empty()) return checkpoint::newest_good(save_dir).value_or(fs::path());
  for (const fs::path& candidate : {fs::path(restore_file), fs::path(save_dir) / restore_file}) {
    std::error_code error;
    if (fs::is_directory(candidate, error)) return candidate;
  }
  fail(code, "--restore-file {}: there is no such checkpoint directory, here or in {}", restore_file,
       save_dir);
}

Json to_json(const Position& position) {
  return {{"epoch", position.epoch}, {"samples_of_epoch", position.samples}, {"step", position.step}};
}

fs::path directory_of_config(const SaveOptions& save) {
  std::vector<fs::path> candidates;
  const auto add_checkpoints = [&](const fs::path& directory) {
    const std::vector<checkpoint::Listed> listed = checkpoint::list(directory);
    for (auto one = listed.rbegin(); one != listed.rend(); ++one) candidates.push_back(one->path);
  };
  if (!save.restore_file.empty()) {
    candidates.emplace_back(save.restore_file);
    candidates.push_back(fs::path(save.save_dir) / save.restore_file);
  }
  add_checkpoints(save.save_dir);
  if (!save.init_from.empty()) {
    candidates.emplace_back(save.init_from);
    add_checkpoints(save.init_from);
  }
  std::error_code error;
  fs::path damaged;
  for (const fs::path& candidate : candidates) {
    if (!fs::exists(candidate / "config.json", error)) continue;
    const bool is_checkpoint = fs::exists(candidate / checkpoint::manifest_name, error);
    if (!is_checkpoint || checkpoint::is_intact(candidate, "config.json")) return candidate;
    if (damaged.empty()) damaged = candidate;
  }
  return damaged;
}

Json new_trainer_json(const std::string& task, const Position& position) {
  Json trainer = to_json(position);
  trainer["format"] = format_version;
  trainer["task"] = task;
  return trainer;
}

Position position_of(const Json& trainer, const std::string& where) {
  return {json_get<int>(trainer, "epoch", where, code),
          json_get<std::int64_t>(trainer, "samples_of_epoch", where, code),
          json_get<std::int64_t>(trainer, "step", where, code)};
}

void check_kind(const Json& trainer, const std::string& task, const std::string& where) {
  if (const int found = json_get<int>(trainer, "format", where, code); found != format_version) {
    fail(code, "{}: format {}; this program reads format {}", where, found, format_version);
  }
  if (const auto found = json_get<std::string>(trainer, "task", where, code); found != task) {
    fail(code, "{}: a checkpoint of task {}; expected task {}", where, found, task);
  }
}

ModelSource find_source(const fs::path& given) {
  std::error_code error;
  if (!fs::is_directory(given, error)) {
    fail(ExitCode::input,
         "there is no directory {}; expected a checkpoint, a --save-dir, or a Hugging Face model directory",
         given.string());
  }
  if (ModelDirectory::is_one(given)) {
    return {given, fs::exists(given / checkpoint::manifest_name, error)};
  }
  if (const auto newest = checkpoint::newest_good(given)) return {*newest, true};
  fail(ExitCode::input,
       "{} has no model.safetensors, no model.safetensors.index.json and no checkpoints; expected a "
       "checkpoint, "
       "a --save-dir, or a Hugging Face model directory",
       given.string());
}

namespace {

// Nothing good can begin with NaN or infinity, and training would only say that it diverged.
void require_finite(const ModelSource& source, const std::vector<io::SafetensorsEntry>& tensors) {
  std::string list;
  for (const io::SafetensorsEntry& tensor : tensors) {
    const std::span values(static_cast<const float*>(tensor.data),
                           static_cast<std::size_t>(tensor.shape.elements()));
    if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) continue;
    list += (list.empty() ? "" : ", ") + tensor.name;
  }
  if (list.empty()) return;
  fail(source.is_checkpoint ? ExitCode::checkpoint : ExitCode::input,
       "{}: numbers that are not finite in {}; expected finite parameters", source.path.string(), list);
}

}  // namespace

std::vector<std::string> read_source(const ModelSource& source, const std::string& task,
                                     const NameRules& rules,
                                     const std::vector<io::SafetensorsEntry>& wanted) {
  std::vector<std::string> absent;
  if (source.is_checkpoint) {
    const checkpoint::Reader reader(source.path);
    check_kind(reader.trainer(), task, (source.path / "trainer.json").string());
    reader.read_model(wanted);
  } else {
    absent = ModelDirectory(source.path).read(wanted, rules);
  }
  require_finite(source, wanted);
  return absent;
}

std::string absent_text(const std::vector<std::string>& absent) {
  if (absent.empty()) return {};
  return fmt::format("; it has none of these, which begin as in a new network: {}", fmt::join(absent, "; "));
}

}  // namespace motley::train
