#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "cli/command.h"
#include "cli/ending.h"
#include "cli/option_set.h"
#include "cli/shared_options.h"
#include "comm/agree.h"
#include "core/json.h"
#include "core/log.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "train/evaluate.h"
#include "train/load_balance.h"
#include "train/memory_limit.h"
#include "train/saver.h"
#include "train/trainer.h"

namespace motley::cli {
namespace {

void declare(OptionSet& set, train::TrainOptions& options, SharedOptions& shared) {
  set.group("what to judge");
  add_data_options(set, options.data);
  set.add("valid-subset", &options.data.valid_subsets,
          "judge on DIR/<this>.h5, several with commas between them");
  set.add("save-dir", &options.save.save_dir, "directory of the run");
  set.add("restore-file", &options.save.restore_file,
          "checkpoint: a directory, or a name in --save-dir such as best; without it the newest good one");
  set.group("network (task bert)");
  add_model_options(set, options.model);
  set.group("network and images (other tasks)");
  add_image_options(set, options.image);
  set.group("how");
  add_batch_options(set, options.batch, false);
  set.add("log-format", &options.report.log_format, "simple or json");
  add_device_options(set, shared);
  add_hetseq_options(set);
}

// An evaluation has nothing that these policies go by.
void check_policy(const std::string& policy) {
  if (policy != "dp" && policy != "edp") return;
  fail(ExitCode::usage,
       "--policy is \"{}\", which divides by what the epochs of training measure; expected sync, static or "
       "auto",
       policy);
}

void print(const report::ValidRecord& record, const std::string& format) {
  Json line = {{"subset", record.subset},
               {"step", record.step},
               {"epoch", record.epoch},
               {"samples", record.samples},
               {"loss", record.loss}};
  for (const auto& [name, value] : record.metrics) line[name] = value;
  const std::string text = format == "json" ? line.dump() : report::valid_text(record);
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

}  // namespace

std::string eval_help() {
  OptionSet set("eval");
  train::TrainOptions options;
  SharedOptions shared;
  declare(set, options, shared);
  return set.help("mpirun -n RANKS motley eval --task TASK --data DIR --save-dir RUN [OPTIONS]",
                  "Prints loss and metrics of a checkpoint on a data set.");
}

namespace {

// What an evaluation uses; made before its work, which may have to end the job while they live.
struct Evaluation {
  Evaluation(const train::TrainOptions& options_, const comm::Communicator& parent)
      : options(options_), world(parent.handle(), options_.timeout_s) {}

  void open();
  void judge();

  const train::TrainOptions& options;
  comm::Communicator world;
  std::unique_ptr<Backend> backend;  // before what holds its memory
  std::unique_ptr<train::Task> task;
  std::optional<train::ComputeRegion> region;
  std::vector<train::DataSet> sets;
  std::optional<train::MicroBatches> micro_batches;
  train::EvaluateOptions how;
  train::ParameterRestorer restorer;
  train::Position position;
};

void Evaluation::open() {
  comm::agree(world, "making the model", [&] { task = train::make_task(options); });
  std::int64_t most_rows = 1;
  for (const std::string& subset : options.data.valid_subsets) {
    sets.push_back(std::move(*train::open_subset(*task, options.data, subset, true, world)));
    most_rows = std::max(most_rows, static_cast<std::int64_t>(sets.back().source.rows));
  }
  backend = train::make_backend({options.device, options.threads, options.deterministic}, world);
  train::check_precision(options.model.precision, *backend, world);
  region.emplace(*backend, options.slow, world, options.seed);
  train::begin_with_memory_limit(options.memory_limit, world, *backend);
  comm::agree(world, "taking memory for the model", [&] {
    task->allocate_parameters(*backend, false);
    micro_batches.emplace(*backend, *task, std::min(options.batch.max_sentences, most_rows), false);
  });
  const auto found =
      restorer.restore(options.save.save_dir, options.save.restore_file, world, *backend, *task);
  // A run that measured its ranks knows how they are best used, if they are as many.
  const auto ranks = static_cast<std::size_t>(world.size());
  const bool as_trained =
      options.batch.policy == "auto" && options.batch.weights.empty() && found.shares.size() == ranks;
  how = {.global_batch = train::global_batch(options.batch, 1, world.size()),
         .window = options.batch.window,
         .weights = as_trained ? found.shares : train::share_weights(options.batch, world.size()),
         .step = found.position.step,
         .micro_batches = &*micro_batches};
  position = found.position;
  log::info("checkpoint {}", found.path.string());
}

void Evaluation::judge() {
  for (train::DataSet& data : sets) {
    const auto started = std::chrono::steady_clock::now();
    const train::Metrics metrics = train::evaluate(*task, *backend, data, world, how, *region).value();
    report::ValidRecord record;
    record.subset = data.subset;
    record.step = position.step;
    record.epoch = position.epoch;
    record.loss = metrics.loss;
    record.metrics = metrics.values;
    record.samples = static_cast<std::int64_t>(data.source.rows);
    record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    if (world.rank() == 0) print(record, options.report.log_format);
  }
}

}  // namespace

void eval(const std::vector<std::string>& arguments, const Context& context) {
  train::TrainOptions options;
  comm::agree(context.world, "reading the options", [&] {
    OptionSet set("eval");
    SharedOptions shared;
    declare(set, options, shared);
    set.parse(arguments);
    apply_shared(shared, options);
    options.max_epoch = 1;
    train::fill_in(options, [&](const std::string& name) { return set.has(name) && set.given(name); });
    train::check_options(options, context.world.size());
    check_policy(options.batch.policy);
    train::refuse_limit_steps(options.memory_limit);
    check_masking_options(set, options.model);
    if (options.report.log_format == "none") {
      fail(ExitCode::usage, "--log-format is \"none\"; expected simple or json");
    }
    warn_of_ignored(set, context.world.rank());
  });
  context.session.set_timeout(options.timeout_s);
  Evaluation evaluation(options, context.world);
  run_or_abort([&] {
    evaluation.open();
    evaluation.judge();
  });
}

}  // namespace motley::cli
