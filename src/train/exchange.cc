#include "train/exchange.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "checkpoint/commit.h"
#include "checkpoint/directory.h"
#include "checkpoint/retention.h"
#include "core/bfloat16.h"
#include "core/error.h"
#include "core/files.h"
#include "core/float16.h"
#include "core/log.h"
#include "io/safetensors.h"
#include "models/bert.h"
#include "train/stored_model.h"
#include "train/tasks/bert_task.h"
#include "train/tasks/image_task.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

constexpr ExitCode code = ExitCode::checkpoint;

// The network that the files in `source` describe, with their vocabulary, or that the options do.
std::unique_ptr<Task> task_of(const ModelSource& source, const ImportOptions& given) {
  TrainOptions options;
  options.data.task = given.task;
  options.image = given.image;
  options.save.save_dir = given.save_dir;
  options.save.init_from = source.path.string();
  if (given.task != "bert") return make_image_task_without_data(options);
  std::error_code error;
  if (!fs::exists(source.path / "config.json", error)) {
    fail(ExitCode::input, "{} has no config.json; expected a Hugging Face directory with one",
         source.path.string());
  }
  return make_bert_task(options);
}

// The network of a checkpoint, and config.json as an export has it.
struct Exported {
  std::unique_ptr<Task> task;
  std::string config;
};
Exported exported(const checkpoint::Reader& reader, DType dtype) {
  TrainOptions options;
  options.data.task =
      json_get<std::string>(reader.trainer(), "task", (reader.path() / "trainer.json").string(), code);
  options.save.restore_file = reader.path().string();
  Exported result{make_task(options), read_file(reader.path() / "config.json", code)};
  if (options.data.task == "bert") {
    Json json = read_bert_config(reader.path() / "config.json", code).to_json();
    json["torch_dtype"] = name_of(dtype);
    result.config = json.dump(2) + "\n";
  }
  return result;
}

std::uint16_t rounded(float value, DType dtype) {
  return dtype == DType::f16 ? from_float<F16>(value).bits : from_float<Bf16>(value).bits;
}

// A tensor rounded to a type of 16 bits. Numbers that become infinite are told of in `overflows`.
std::vector<std::uint16_t> rounded(const io::SafetensorsEntry& tensor, DType dtype,
                                   std::vector<std::string>& overflows) {
  const std::uint16_t infinity = rounded(INFINITY, dtype);
  const auto* const values = static_cast<const float*>(tensor.data);
  std::vector<std::uint16_t> result(static_cast<std::size_t>(tensor.shape.elements()));
  float largest = 0;
  std::size_t too_large = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = rounded(values[i], dtype);
    if (!std::isfinite(values[i]) || (result[i] & 0x7fffu) != infinity) continue;
    ++too_large;
    largest = std::max(largest, std::abs(values[i]));
  }
  if (too_large > 0)
    overflows.push_back(fmt::format("{} ({} of them, up to {})", tensor.name, too_large, largest));
  return result;
}

// The tensors in another type; `memory` holds their numbers.
std::vector<io::SafetensorsEntry> converted(const std::vector<io::SafetensorsEntry>& tensors, DType dtype,
                                            std::vector<std::vector<std::uint16_t>>& memory) {
  std::vector<io::SafetensorsEntry> result = tensors;
  std::vector<std::string> overflows;
  for (io::SafetensorsEntry& tensor : result) {
    if (dtype == DType::f32) break;
    memory.push_back(rounded(tensor, dtype, overflows));
    tensor.dtype = dtype;
    tensor.data = memory.back().data();
  }
  if (!overflows.empty()) {
    fail(ExitCode::usage, "numbers of this model are too large for {}: {}; expected another --dtype",
         name_of(dtype), fmt::join(overflows, ", "));
  }
  return result;
}

// DIR/ is DIR; the name is needed for a temporary one beside it.
fs::path output_path(const std::string& out) {
  fs::path path = fs::path(out).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  const bool taken = fs::exists(fs::symlink_status(path, error)) &&
                     !(fs::is_directory(path, error) && fs::is_empty(path, error));
  if (taken)
    fail(ExitCode::usage, "--out {} is there already; expected a new or empty directory", path.string());
  return path;
}

void write_out(const fs::path& out, const std::vector<io::SafetensorsEntry>& tensors,
               const std::string& config, const fs::path& checkpoint) {
  const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
  checkpoint::make_durable_directories(parent);
  const checkpoint::TemporaryTree tree(checkpoint::temporary_path(parent, out.filename().string()));
  io::write_safetensors(tree.path() / "model.safetensors", tensors, {{"format", "pt"}}, code);
  write_file(tree.path() / "config.json", config, code);
  for (const char* name : {"vocab.txt", "tokenizer_config.json"}) {
    std::error_code error;
    if (!fs::exists(checkpoint / name, error)) continue;
    write_file(tree.path() / name, read_file(checkpoint / name, code), code);
  }
  sync_path(tree.path(), code);
  rename_durably(tree.path(), out, code);
}

// The checkpoint of step 0; when it cannot be written, no new directory stays.
fs::path write_first(const fs::path& save_dir, const checkpoint::Contents& contents) {
  std::error_code error;
  const bool is_new = !fs::exists(save_dir, error);
  try {
    return checkpoint::write(save_dir, 0, contents);
  } catch (const Error&) {
    if (is_new) fs::remove(save_dir, error);
    throw;
  }
}

}  // namespace

fs::path import_model(const ImportOptions& options) {
  if (!checkpoint::list(options.save_dir).empty()) {
    fail(ExitCode::usage,
         "--save-dir {} holds the checkpoints of a run already; expected a directory without",
         options.save_dir);
  }
  const ModelSource source = find_source(options.from);
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);  // before what holds its memory
  const std::unique_ptr<Task> task = task_of(source, options);
  ParameterStore& store = task->parameters();
  store.allocate(*backend, false);
  store.initialize(options.seed);
  std::vector<float> values(static_cast<std::size_t>(store.stored().elements()));
  backend->copy_to_host(values.data(), store.stored().data, store.stored().bytes());

  checkpoint::Contents contents;
  contents.model = model_entries_of(store, values.data());
  const std::vector<std::string> absent =
      read_source(source, task->name(), task->name_rules(), contents.model);
  contents.model_metadata = {{"format", "pt"}, {"task", task->name()}};
  contents.extra_files = task->model_files();
  contents.trainer = new_trainer_json(task->name(), {});
  contents.trainer["optimizer"] = no_optimizer;
  contents.trainer["seed"] = options.seed;
  contents.trainer["imported_from"] = source.path.string();
  // Kept as the end of an epoch is.
  contents.trainer["kind"] = checkpoint::kind_text({0, true, false});
  const fs::path written = write_first(options.save_dir, contents);
  log::info("{}: {} parameters of {}{}", written.string(), store.count(), source.path.string(),
            absent_text(absent));
  return written;
}

fs::path export_model(const ExportOptions& options) {
  const fs::path out = output_path(options.out);
  const fs::path found = find_checkpoint(options.save_dir, options.restore_file);
  if (found.empty()) fail(code, "there is no checkpoint in {}", options.save_dir);
  const checkpoint::Reader reader(found);
  // Of the network alone the names, the shapes and the places in the arena are needed.
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  const auto [task, config] = exported(reader, options.dtype);
  check_kind(reader.trainer(), task->name(), (reader.path() / "trainer.json").string());
  ParameterStore& store = task->parameters();
  store.allocate(*backend, false);
  const std::vector<io::SafetensorsEntry> tensors = model_entries_of(store, store.stored().as<float>());
  reader.read_model(tensors);
  std::vector<std::vector<std::uint16_t>> memory;
  write_out(out, converted(tensors, options.dtype, memory), config, reader.path());
  log::info("{}: {} parameters of {} as {}", out.string(), store.count(), found.string(),
            name_of(options.dtype));
  return found;
}

}  // namespace motley::train
