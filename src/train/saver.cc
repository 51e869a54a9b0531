#include "train/saver.h"

#include <algorithm>
#include <memory>
#include <new>

#include "balance/balancer.h"
#include "checkpoint/commit.h"
#include "checkpoint/directory.h"
#include "checkpoint/retention.h"
#include "comm/agree.h"
#include "core/clock.h"
#include "core/files.h"
#include "core/log.h"
#include "train/stored_model.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

// Sends an arena from rank 0's host memory to every rank's device.
void distribute(std::vector<float>& arena, View device, const comm::Communicator& world, Backend& backend,
                const char* what) {
  MOTLEY_CHECK(device.bytes() <= arena.size() * sizeof(float));
  world.broadcast(arena.data(), device.bytes(), 0, what);
  backend.copy_to_device(device.data, arena.data(), device.bytes());
  backend.synchronize();
}

// How the training data lies, as far as the order of an epoch depends on it.
std::string layout_text(const PlannerOptions& planner) {
  if (planner.shards.empty()) return "rows that are read one by one";
  std::uint64_t blocks = 0, largest = 0;
  for (const ShardSize& shard : planner.shards) {
    blocks += (shard.rows + shard.block_rows - 1) / shard.block_rows;
    largest = std::max(largest, shard.block_rows);
  }
  return fmt::format("{} shards of {} blocks of up to {} rows", planner.shards.size(), blocks, largest);
}

// What the task would write beside the parameters must be what lies there: a network with the same shapes can
// still be another (its activation, its dropout), and so can a vocabulary.
std::string other_model(const fs::path& checkpoint, const Task& task) {
  std::string all;
  for (const auto& [name, text] : task.model_files()) {
    std::error_code error;
    if (!fs::exists(checkpoint / name, error)) continue;
    const std::string before = read_file(checkpoint / name, ExitCode::checkpoint);
    if (before == text) continue;
    std::string differences;
    if (name == "config.json") {
      const Json was = parse_json(before, (checkpoint / name).string(), ExitCode::checkpoint),
                 is = Json::parse(text);
      for (const auto& [key, value] : is.items()) {
        if (was.value(key, Json()) == value) continue;
        differences += fmt::format("{} {} was {}, is {}", differences.empty() ? ":" : ";", key,
                                   was.value(key, Json()).dump(), value.dump());
      }
      if (differences.empty()) continue;
    }
    all += fmt::format("{}its {} differs from {}{}",
                       all.empty() ? "the network is not that of the checkpoint: " : "; ", name,
                       (checkpoint / name).string(), differences);
  }
  return all;
}

// The options that decide what is computed; the others may change freely between a run and its continuation.
const char* const mathematical_options[] = {"seed",
                                            "optimizer",
                                            "momentum",
                                            "dampening",
                                            "nesterov",
                                            "adam-betas",
                                            "adam-eps",
                                            "adadelta-rho",
                                            "adadelta-eps",
                                            "weight-decay",
                                            "clip-norm",
                                            "lr",
                                            "local-steps",
                                            "lr-scheduler",
                                            "lr-unit",
                                            "lr-epochs",
                                            "lr-step-size",
                                            "lr-milestones",
                                            "lr-gamma",
                                            "crop-padding",
                                            "flip",
                                            "sync-bn",
                                            "power",
                                            "warmup-updates",
                                            "total-num-update",
                                            "end-learning-rate",
                                            "curriculum",
                                            "shuffle-pool",
                                            "precision",
                                            "allreduce-dtype",
                                            "masking",
                                            "masked-lm-prob",
                                            "max-predictions-per-seq",
                                            "whole-word"};

}  // namespace

Saver::Saver(const TrainOptions& options, const comm::Communicator& world, Backend& backend, Task& task,
             Optimizer* optimizer)
    : options_(options), world_(world), backend_(backend), task_(task), optimizer_(optimizer) {}

void Saver::check_changes(const fs::path& checkpoint, const Json& trainer,
                          const PlannerOptions& planner) const {
  std::string changes = changes_of_options(trainer, planner);
  const std::string model = other_model(checkpoint, task_);
  if (!model.empty()) changes += (changes.empty() ? "" : "; ") + model;
  if (changes.empty()) return;
  const std::string sentence =
      fmt::format("this run continues {}, and is not the same: {}", checkpoint.string(), changes);
  if (!options_.save.allow_changed_options)
    fail(ExitCode::usage,
         "{}. Expected the options of that run, --allow-changed-options, or another --save-dir", sentence);
  log::warn("{}", sentence);
}

std::string Saver::changes_of_options(const Json& trainer, const PlannerOptions& planner) const {
  std::string changes;
  const auto changed = [&](const std::string& what, const std::string& before, const std::string& now) {
    // An option that plays no part in one of the runs has no value there.
    if (before != now && !before.empty() && !now.empty())
      changes += fmt::format("{}{} was {}, is {}", changes.empty() ? "" : "; ", what, before, now);
  };
  const Json before = trainer.value("options", Json::object());
  for (const auto& [name, value] : options_.as_used) {
    const bool matters = std::find(std::begin(mathematical_options), std::end(mathematical_options), name) !=
                         std::end(mathematical_options);
    if (matters && before.contains(name)) changed("--" + name, before[name].get<std::string>(), value);
  }
  // What the published policies do to the gradient is not what the others do.
  const auto published = [](const std::string& policy) { return policy == "dp" || policy == "edp"; };
  const std::string policy = before.value("policy", ""), now = options_.batch.policy;
  if (published(policy) || published(now)) changed("--policy", policy, now);
  const std::string where = "trainer.json";
  constexpr ExitCode code = ExitCode::checkpoint;
  const int epoch = json_get<int>(trainer, "epoch", where, code);
  changed("the global batch", std::to_string(json_get<std::int64_t>(trainer, "global_batch", where, code)),
          std::to_string(planner.global_batch(epoch)));
  changed("the number of training samples",
          std::to_string(json_get<std::uint64_t>(trainer, "training_samples", where, code)),
          std::to_string(planner.samples));
  if (trainer.contains("training_layout"))
    changed("the layout of the training data", trainer["training_layout"].get<std::string>(),
            layout_text(planner));
  return changes;
}

fs::path Saver::find_on_root() {
  const SaveOptions& save = options_.save;
  if (!save.restore_file.empty()) return find_checkpoint(save.save_dir, save.restore_file);
  searched_ = checkpoint::search(save.save_dir);
  if (searched_.good) return *searched_.good;
  if (save.restart_from_scratch) return {};
  if (!searched_.bad.empty()) throw checkpoint::none_is_good(save.save_dir, searched_.bad);
  if (checkpoint::has_set_aside(save.save_dir))
    fail(ExitCode::checkpoint,
         "{} has only checkpoints that were bad and set aside (bad-step-...). To start over, give "
         "--restart-from-scratch or "
         "another --save-dir",
         save.save_dir);
  return {};
}

// Reads the checkpoint into the staging memory; what the other ranks have to know, or nothing.
std::string Saver::read_on_root(const PlannerOptions& planner, const Best& best) {
  const fs::path path = find_on_root();
  if (path.empty()) return {};
  const checkpoint::Reader reader(path, searched_.good.has_value());
  take_staging(1 + optimizer_->states().size());
  const std::string where = (path / "trainer.json").string();
  check_kind(reader.trainer(), task_.name(), where);
  const std::string optimizer = reader.trainer().value("optimizer", "");
  const bool has_state = optimizer != no_optimizer;
  if (has_state && optimizer != options_.optimizer.name) {
    fail(ExitCode::checkpoint,
         "{}: a checkpoint of --optimizer {}; this run's is {}, which needs another state", where, optimizer,
         options_.optimizer.name);
  }
  const ParameterStore& store = task_.parameters();
  reader.read_model(model_entries_of(store, staging_[0].data()));
  if (has_state) {
    std::vector<io::SafetensorsEntry> wanted;
    for (std::size_t i = 0; i < optimizer_->states().size(); ++i) {
      const auto of_state = entries_of(store, optimizer_->states()[i].name + "/", staging_[i + 1].data());
      wanted.insert(wanted.end(), of_state.begin(), of_state.end());
    }
    reader.read_optimizer(wanted);
    found_balance_ = reader.trainer().value("balance", Json());
    found_loss_scale_ = reader.trainer().value("loss_scale", Json());
    found_bad_steps_ = reader.trainer().value("bad_steps", Json());
    found_where_ = where;
    check_changes(path, reader.trainer(), planner);
  }
  Json found = to_json(position_of(reader.trainer(), where));
  found["path"] = path.string();
  found["has_state"] = has_state;
  const checkpoint::Kept kept = checkpoint::kept_from(0, reader.trainer().value("kind", ""));
  found["epoch_end"] = kept.epoch_end;
  found["interval"] = kept.interval;
  found["validation_due"] = reader.trainer().value("validation_due", false);
  // A best of another directory has no checkpoint here that `best` could point to.
  std::error_code error;
  if (fs::equivalent(fs::path(path).parent_path().empty() ? fs::path(".") : path.parent_path(),
                     options_.save.save_dir, error)) {
    found["best"] = Best::from_json(reader.trainer().value("best", Json()), best).to_json();
  }
  return found.dump(-1, ' ', false, Json::error_handler_t::replace);  // a path need not be UTF-8
}

void Saver::take_staging(std::size_t arenas) {
  staging_.clear();
  for (std::size_t i = 0; i < arenas; ++i) staging_.emplace_back(task_.parameters().stored_elements());
}

std::optional<Saver::Restored> Saver::restore(const PlannerOptions& planner, const Best& best) {
  const ParameterStore& store = task_.parameters();
  std::string description;
  comm::agree_on_root(world_, "reading the checkpoint", [&] { description = read_on_root(planner, best); });
  description = world_.broadcast(description, 0, "which checkpoint to continue");
  if (description.empty()) return std::nullopt;
  // The others need one arena, which all pass through.
  comm::agree(world_, "taking memory for the checkpoint", [&] {
    if (world_.rank() != 0) take_staging(1);
  });
  distribute(staging_[0], store.stored(), world_, backend_, "the parameters of the checkpoint");
  task_.parameters().changed();
  const Json found = Json::parse(description);
  const std::size_t states = found["has_state"].get<bool>() ? optimizer_->states().size() : 0;
  for (std::size_t i = 0; i < states; ++i) {
    const View arena = optimizer_->states()[i].arena.view(DType::f32, store.values().shape);
    distribute(world_.rank() == 0 ? staging_[i + 1] : staging_[0], arena, world_, backend_,
               "the optimizer state of the checkpoint");
  }
  staging_.clear();
  return Restored{
      found["path"].get<std::string>(),
      position_of(found, "the checkpoint"),
      Best::from_json(found.value("best", Json()), best),
      {found["epoch_end"].get<bool>(), found["interval"].get<bool>(), found["validation_due"].get<bool>()}};
}

void Saver::keep(LoadBalance& balance, LossScale& loss_scale, BadSteps& bad_steps) {
  balance_ = &balance;
  bad_steps_ = &bad_steps;
  loss_scale_ = &loss_scale;
  if (loss_scale.active()) {
    comm::agree_on_root(world_, "taking over the loss scale",
                        [&] { loss_scale.restore(found_loss_scale_, found_where_); });
    const std::string state = world_.broadcast(loss_scale.to_json().dump(), 0, "the loss scale");
    loss_scale.restore(Json::parse(state), "the loss scale of rank 0");
  }
  comm::agree_on_root(world_, "taking over the number of skipped steps",
                      [&] { bad_steps.restore(found_bad_steps_, found_where_); });
  bad_steps.restore(
      Json::parse(world_.broadcast(bad_steps.to_json().dump(), 0, "the number of skipped steps")), "rank 0");
  comm::agree_on_root(world_, "taking over the shares", [&] {
    if (found_balance_.is_null() || !balance.measures()) return;
    if (!balance.restore(found_balance_, found_where_))
      log::info("the shares begin anew: the run that is continued had other ranks or another --policy");
  });
}

void Saver::begin_from_source() {
  const ParameterStore& store = task_.parameters();
  staging_.assign(1, std::vector<float>(store.stored_elements()));
  backend_.copy_to_host(staging_[0].data(), store.stored().data, store.stored().bytes());
  comm::agree_on_root(world_, "reading the parameters to begin with", [&] {
    const ModelSource source = find_source(options_.save.init_from);
    const std::vector<std::string> absent =
        read_source(source, task_.name(), task_.name_rules(), model_entries_of(store, staging_[0].data()));
    log::info("a new run with the parameters of {}{}", source.path.string(), absent_text(absent));
  });
  distribute(staging_[0], store.stored(), world_, backend_, "the parameters to begin with");
  task_.parameters().changed();
  staging_.clear();
}

// A snapshot of the state, and the texts beside it.
checkpoint::Contents Saver::contents_of(const Position& position, const Best& best,
                                        const PlannerOptions& planner, const Reasons& why) {
  const ParameterStore& store = task_.parameters();
  const std::vector<Optimizer::State>& states = optimizer_->states();
  snapshot_.resize(1 + states.size());
  snapshot_[0].resize(store.stored_elements());
  backend_.copy_to_host(snapshot_[0].data(), store.stored().data, store.stored().bytes());
  checkpoint::Contents contents;
  contents.model = model_entries_of(store, snapshot_[0].data());
  contents.model_metadata = {{"format", "pt"}, {"task", task_.name()}};
  contents.extra_files = task_.model_files();
  for (std::size_t i = 0; i < states.size(); ++i) {
    std::vector<float>& arena = snapshot_[i + 1];
    arena.resize(store.arena_elements());
    backend_.copy_to_host(arena.data(), states[i].arena.data(), states[i].arena.bytes());
    const auto of_state = entries_of(store, states[i].name + "/", arena.data());
    contents.optimizer.insert(contents.optimizer.end(), of_state.begin(), of_state.end());
  }
  Json& trainer = contents.trainer = new_trainer_json(task_.name(), position);
  trainer["optimizer"] = options_.optimizer.name;
  trainer["seed"] = options_.seed;
  trainer["ranks"] = world_.size();
  trainer["global_batch"] = planner.global_batch(position.epoch);
  trainer["training_samples"] = planner.samples;
  trainer["training_layout"] = layout_text(planner);
  trainer["kind"] = checkpoint::kind_text({position.step, why.epoch_end, why.interval});
  if (why.validation_due) trainer["validation_due"] = true;
  trainer["best"] = best.to_json();
  if (balance_ != nullptr) trainer["balance"] = balance_->to_json();
  if (bad_steps_ != nullptr) trainer["bad_steps"] = bad_steps_->to_json();
  if (loss_scale_ != nullptr && loss_scale_->active()) trainer["loss_scale"] = loss_scale_->to_json();
  trainer["options"] = Json::object();
  for (const auto& [name, value] : options_.as_used) trainer["options"][name] = value;
  return contents;
}

// Returns why it could not be.
std::string Saver::write(const checkpoint::Contents& contents, std::int64_t step, bool is_best) const {
  try {
    tidy_up(checkpoint::write(options_.save.save_dir, step, contents), is_best);
    return {};
  } catch (const Error& problem) {
    return problem.what();
  } catch (const std::bad_alloc&) {
    return "the memory of this machine ran out";
  }
}

void Saver::begin(const Position& position, const Best& best, const PlannerOptions& planner,
                  const Reasons& why) {
  MOTLEY_CHECK(!writing_.valid());
  if (world_.rank() != 0) return;
  begun_s_ = now_s();
  const std::int64_t step = position.step;
  const auto end = [this, step](const std::string& failure) {
    if (!failure.empty()) log::warn("the checkpoint of step {} was not written: {}", step, failure);
    return Written{failure, now_s() - begun_s_};
  };
  try {
    // Shared, since a task that can be copied is what threads are given.
    auto contents = std::make_shared<checkpoint::Contents>(contents_of(position, best, planner, why));
    writing_ = std::async(std::launch::async, [this, contents, step, is_best = best.step == step, end] {
      return end(write(*contents, step, is_best));
    });
  } catch (const std::bad_alloc&) {
    snapshot_.clear();
    std::promise<Written> none;
    none.set_value(end("the memory of this machine ran out"));
    writing_ = none.get_future();
  }
}

Saver::Written Saver::finish() {
  Written written;
  if (world_.rank() == 0) {
    const double started_s = now_s();
    written = writing_.get();
    written.waited_s = now_s() - started_s;
  }
  written.failure = world_.broadcast(written.failure, 0, "the checkpoint to be written");
  return written;
}

void Saver::repair_best(const Best& best) const {
  if (best.step < 0) return;
  const fs::path path = fs::path(options_.save.save_dir) / checkpoint::directory_name(best.step);
  std::error_code error;
  if (!fs::is_directory(path, error)) return;
  try {
    checkpoint::mark_best(options_.save.save_dir, path);
  } catch (const Error& problem) {
    log::warn("{}", problem.what());
  }
}

// What follows a checkpoint that stands: trouble with it costs a warning, not the checkpoint.
void Saver::tidy_up(const fs::path& checkpoint, bool is_best) const {
  try {
    if (is_best) checkpoint::mark_best(options_.save.save_dir, checkpoint);
    // As in HetSeq, 0 keeps all, too.
    const auto keep = [](std::int64_t count) { return count > 0 ? count : -1; };
    checkpoint::apply_retention(options_.save.save_dir, {keep(options_.save.keep_interval_updates),
                                                         keep(options_.save.keep_last_epochs)});
  } catch (const Error& problem) {
    log::warn("{} is written, but: {}", checkpoint.string(), problem.what());
  }
}

ParameterRestorer::Found ParameterRestorer::restore(const std::string& save_dir,
                                                    const std::string& restore_file,
                                                    const comm::Communicator& world, Backend& backend,
                                                    Task& task) {
  const ParameterStore& store = task.parameters();
  staging_.assign(store.stored_elements(), 0.0F);
  std::string description;
  comm::agree_on_root(world, "reading the checkpoint", [&] {
    const fs::path path = find_checkpoint(save_dir, restore_file);
    if (path.empty()) fail(ExitCode::checkpoint, "there is no checkpoint in {}", save_dir);
    const checkpoint::Reader reader(path);
    const std::string where = (path / "trainer.json").string();
    check_kind(reader.trainer(), task.name(), where);
    reader.read_model(model_entries_of(store, staging_.data()));
    if (const std::string other = other_model(path, task); !other.empty()) log::warn("{}", other);
    Json found = to_json(position_of(reader.trainer(), where));
    found["path"] = path.string();
    const Json balance = reader.trainer().value("balance", Json::object());
    if (balance.contains("models")) found["shares"] = balance::shares_of(balance, where);
    description = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  });
  const Json found = Json::parse(world.broadcast(description, 0, "which checkpoint was read"));
  distribute(staging_, store.stored(), world, backend, "the parameters of the checkpoint");
  task.parameters().changed();
  return {found["path"].get<std::string>(), position_of(found, "the checkpoint"),
          found.value("shares", std::vector<double>())};
}

}  // namespace motley::train
