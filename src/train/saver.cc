#include "train/saver.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/directory.h"
#include "checkpoint/retention.h"
#include "comm/agree.h"
#include "core/log.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

constexpr int format_version = 1;

// Entries for one arena held in host memory: one tensor per parameter, in forward order.
std::vector<io::SafetensorsEntry> entries(const ParameterStore& store, const std::string& prefix,
                                          float* arena) {
  std::vector<io::SafetensorsEntry> list;
  for (const Parameter& parameter : store.all()) {
    io::SafetensorsEntry entry;
    entry.name = prefix + parameter.name;
    entry.dtype = DType::f32;
    entry.shape = parameter.shape;
    entry.data = arena + parameter.offset;
    list.push_back(entry);
  }
  return list;
}

// Which checkpoint to load, on rank 0; empty when a run is to start from the beginning.
fs::path find_checkpoint(const std::string& save_dir, const std::string& restore_file) {
  if (restore_file.empty()) return checkpoint::newest_good(save_dir).value_or(fs::path());
  for (const fs::path& candidate : {fs::path(restore_file), fs::path(save_dir) / restore_file}) {
    std::error_code error;
    if (fs::is_directory(candidate, error)) return candidate;
  }
  fail(ExitCode::checkpoint, "--restore-file {}: there is no such checkpoint directory, here or in {}",
       restore_file, save_dir);
}

// Sends an arena from rank 0's host memory to every rank's device.
void distribute(std::vector<float>& arena, View device, const comm::Communicator& world, Backend& backend,
                const char* what) {
  world.broadcast(arena.data(), arena.size() * sizeof(float), 0, what);
  backend.copy_to_device(device.data, arena.data(), device.bytes());
  backend.synchronize();
}

std::int64_t padded_length(const ParameterStore& store) {
  return static_cast<std::int64_t>(store.arena_elements());
}

// The options that decide what is computed; the others may change freely between a run and its continuation.
const char* const mathematical_options[] = {
    "task",      "seed",         "global-batch",   "max-sentences",    "update-freq",
    "optimizer", "momentum",     "dampening",      "nesterov",         "adam-betas",
    "adam-eps",  "adadelta-rho", "adadelta-eps",   "weight-decay",     "clip-norm",
    "lr",        "power",        "warmup-updates", "total-num-update", "end-learning-rate",
    "curriculum"};

}  // namespace

Saver::Saver(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
             Optimizer* optimizer)
    : options_(options), world_(world), backend_(backend), task_(task), optimizer_(optimizer) {}

Json Saver::trainer_state(const Position& position, const Best& best, bool epoch_end, bool interval) const {
  Json options = Json::object();
  for (const auto& [name, value] : options_.as_used) options[name] = value;
  return {{"format", format_version},
          {"task", task_.name()},
          {"step", position.step},
          {"epoch", position.epoch},
          {"samples_of_epoch", position.samples},
          {"seed", options_.seed},
          {"ranks", world_.size()},
          {"kind", checkpoint::kind_text({position.step, epoch_end, interval})},
          {"best", {{"metric", options_.save.best_metric}, {"value", best.value}, {"step", best.step}}},
          {"options", options}};
}

void Saver::warn_of_changes(const Json& trainer) const {
  if (!trainer.contains("options")) return;
  const Json& before = trainer["options"];
  std::string changes;
  for (const auto& [name, value] : options_.as_used) {
    if (std::find(std::begin(mathematical_options), std::end(mathematical_options), name) ==
        std::end(mathematical_options)) {
      continue;
    }
    if (!before.contains(name) || before[name] == value) continue;
    changes += fmt::format("{}--{} was {}, is {}", changes.empty() ? "" : "; ", name,
                           before[name].get<std::string>(), value);
  }
  if (!changes.empty())
    log::warn("this run continues one with other options, so it is not the same run: {}", changes);
}

std::optional<Saver::Restored> Saver::restore() {
  ParameterStore& store = task_.parameters();
  std::vector<float> values(store.arena_elements());
  std::vector<std::vector<float>> states(optimizer_->states().size(), values);
  std::string description;
  comm::agree_on_root(world_, "reading the checkpoint", [&] {
    const fs::path path = find_checkpoint(options_.save.save_dir, options_.save.restore_file);
    if (path.empty()) return;
    const checkpoint::Reader reader(path);
    const std::string where = (path / "trainer.json").string();
    constexpr ExitCode code = ExitCode::checkpoint;
    if (const int found = json_get<int>(reader.trainer(), "format", where, code); found != format_version) {
      fail(code, "{}: format {}; this program reads format {}", where, found, format_version);
    }
    if (const auto task = json_get<std::string>(reader.trainer(), "task", where, code);
        task != task_.name()) {
      fail(code, "{} is a checkpoint of task {}; this run's task is {}", path.string(), task, task_.name());
    }
    reader.read_model(entries(store, "", values.data()));
    std::vector<io::SafetensorsEntry> wanted;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto of_state = entries(store, optimizer_->states()[i].name + "/", states[i].data());
      wanted.insert(wanted.end(), of_state.begin(), of_state.end());
    }
    reader.read_optimizer(wanted);
    warn_of_changes(reader.trainer());
    const Json best = json_get<Json>(reader.trainer(), "best", where, code);
    description = Json{{"path", path.string()},
                       {"step", json_get<std::int64_t>(reader.trainer(), "step", where, code)},
                       {"epoch", json_get<int>(reader.trainer(), "epoch", where, code)},
                       {"samples", json_get<std::int64_t>(reader.trainer(), "samples_of_epoch", where, code)},
                       {"best_value", json_get<double>(best, "value", where, code)},
                       {"best_step", json_get<std::int64_t>(best, "step", where, code)}}
                      .dump();
  });
  description = world_.broadcast(description, 0, "which checkpoint to continue");
  if (description.empty()) return std::nullopt;
  distribute(values, store.values(), world_, backend_, "the parameters of the checkpoint");
  for (std::size_t i = 0; i < states.size(); ++i) {
    const View arena = optimizer_->states()[i].arena.view(DType::f32, Shape{padded_length(store)});
    distribute(states[i], arena, world_, backend_, "the optimizer state of the checkpoint");
  }
  const Json found = Json::parse(description);
  Restored restored;
  restored.path = found["path"].get<std::string>();
  restored.position = {found["epoch"].get<int>(), found["samples"].get<std::int64_t>(),
                       found["step"].get<std::int64_t>()};
  restored.best = {found["best_value"].get<double>(), found["best_step"].get<std::int64_t>()};
  return restored;
}

bool Saver::save(const Position& position, const Best& best, bool epoch_end, bool interval) {
  double failed = 0;
  if (world_.rank() == 0) {
    try {
      const ParameterStore& store = task_.parameters();
      std::vector<float> values(store.arena_elements());
      backend_.copy_to_host(values.data(), store.values().data, store.values().bytes());
      checkpoint::Contents contents;
      contents.model = entries(store, "", values.data());
      contents.model_metadata = {{"format", "pt"}, {"task", task_.name()}};
      std::vector<std::vector<float>> states;
      for (const Optimizer::State& state : optimizer_->states()) {
        states.emplace_back(store.arena_elements());
        backend_.copy_to_host(states.back().data(), state.arena.data(), state.arena.bytes());
        const auto of_state = entries(store, state.name + "/", states.back().data());
        contents.optimizer.insert(contents.optimizer.end(), of_state.begin(), of_state.end());
      }
      contents.trainer = trainer_state(position, best, epoch_end, interval);
      const fs::path path = checkpoint::write(options_.save.save_dir, position.step, contents);
      if (best.step == position.step) checkpoint::mark_best(options_.save.save_dir, path);
      // As in HetSeq, 0 keeps all, too.
      const auto keep = [](std::int64_t count) { return count > 0 ? count : -1; };
      checkpoint::apply_retention(options_.save.save_dir, {keep(options_.save.keep_interval_updates),
                                                           keep(options_.save.keep_last_epochs)});
    } catch (const Error& problem) {
      failed = 1;
      log::warn("the checkpoint of step {} was not written and training goes on: {}", position.step,
                problem.what());
    }
  }
  world_.broadcast(&failed, sizeof(failed), 0, "the checkpoint to be written");
  return failed == 0;
}

fs::path restore_parameters(const std::string& save_dir, const std::string& restore_file,
                            const comm::Communicator& world, Backend& backend, Task& task) {
  ParameterStore& store = task.parameters();
  std::vector<float> values(store.arena_elements());
  std::string found;
  comm::agree_on_root(world, "reading the checkpoint", [&] {
    const fs::path path = find_checkpoint(save_dir, restore_file);
    if (path.empty()) fail(ExitCode::checkpoint, "there is no checkpoint in {}", save_dir);
    const checkpoint::Reader reader(path);
    reader.read_model(entries(store, "", values.data()));
    found = path.string();
  });
  found = world.broadcast(found, 0, "which checkpoint was read");
  distribute(values, store.values(), world, backend, "the parameters of the checkpoint");
  return found;
}

}  // namespace motley::train
