#include <cstdio>

#include "balance/slow.h"
#include "cli/command.h"
#include "cli/option_set.h"
#include "cli/shared_options.h"
#include "comm/agree.h"
#include "core/json.h"
#include "core/log.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "train/evaluate.h"
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
  set.group("how");
  add_batch_options(set, options.batch);
  set.add("log-format", &options.report.log_format, "simple or json");
  add_device_options(set, shared);
}

report::ValidRecord judge(train::Task& task, Backend& backend, train::DataSet& data,
                          const comm::Communicator& world, const train::EvaluateOptions& how,
                          const std::string& slow) {
  const double factor =
      slow.empty() ? 1
                   : balance::parse_slow(slow, world.size())[static_cast<std::size_t>(world.rank())].factor;
  train::ComputeRegion region(factor);
  const train::Metrics metrics = train::evaluate(task, backend, data, world, how, region);
  report::ValidRecord record;
  record.subset = data.subset;
  record.loss = metrics.loss;
  record.metrics = metrics.values;
  record.samples = static_cast<std::int64_t>(data.source.rows);
  return record;
}

void print(const report::ValidRecord& record, const std::string& format) {
  Json line = {{"subset", record.subset}, {"samples", record.samples}, {"loss", record.loss}};
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
  return set.help("mpirun -n RANKS motley eval --task mnist --data DIR --save-dir RUN [OPTIONS]",
                  "Prints loss and metrics of a checkpoint on a data set.");
}

void eval(const std::vector<std::string>& arguments, const comm::Communicator& world) {
  train::TrainOptions options;
  comm::agree(world, "reading the options", [&] {
    OptionSet set("eval");
    SharedOptions shared;
    declare(set, options, shared);
    set.parse(arguments);
    apply_shared(shared, options);
    options.max_epoch = 1;
    train::check_options(options, world.size());
  });
  // Before the task, whose buffers must go before the device does.
  const std::unique_ptr<Backend> backend = train::make_backend(options.device, options.threads, world);
  const std::unique_ptr<train::Task> task = train::make_task(options.data.task);
  std::vector<train::DataSet> sets;
  for (const std::string& subset : options.data.valid_subsets) {
    std::string path;
    comm::agree_on_root(world, "looking for the data",
                        [&] { path = train::subset_path(options.data.data, subset); });
    path = world.broadcast(path, 0, "where the data is");
    sets.push_back(train::open_data(*task, subset, path, world));
  }
  const train::EvaluateOptions how{train::global_batch(options.batch, 1, world.size()),
                                   options.batch.max_sentences, options.batch.window,
                                   train::share_weights(options.batch, world.size())};
  comm::agree(world, "taking memory for the model",
              [&] { task->allocate(*backend, options.batch.max_sentences, false); });
  const auto checkpoint =
      train::restore_parameters(options.save.save_dir, options.save.restore_file, world, *backend, *task);
  log::info("checkpoint {}", checkpoint.string());
  for (train::DataSet& data : sets) {
    const report::ValidRecord record = judge(*task, *backend, data, world, how, options.slow);
    if (world.rank() == 0) print(record, options.report.log_format);
  }
}

}  // namespace motley::cli
