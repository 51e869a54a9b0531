#include "train/probe.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/command.h"
#include "cli/ending.h"
#include "cli/option_set.h"
#include "cli/shared_options.h"
#include "cli/table.h"
#include "comm/agree.h"
#include "core/files.h"
#include "core/log.h"
#include "core/quantity.h"
#include "report/terminal.h"
#include "report/work_line.h"
#include "train/memory_limit.h"

namespace motley::cli {
namespace {

struct ProbeOptions {
  train::TrainOptions train;
  SharedOptions shared;
  std::string out;
  double seconds = 0.3;
};

void declare(OptionSet& set, ProbeOptions& options) {
  set.group("what to measure with");
  add_data_options(set, options.train.data);
  set.add("train-subset", &options.train.data.train_subset, "rows of DIR/<this>.h5, or of its shards");
  set.add("max-sentences", &options.train.batch.max_sentences,
          "largest micro-batch; 1, 2, 4, ... are measured up to it");
  set.add("global-batch", &options.train.batch.global_batch,
          "noted for motley plan; 0: max-sentences x ranks");
  set.add("optimizer", &options.train.optimizer.name, "as in motley train: its memory and time count");
  set.group("network (task bert)");
  add_model_options(set, options.train.model);
  set.add_switch("recompute", &options.train.model.recompute, "as in motley train");
  set.group("network and images (other tasks)");
  add_image_options(set, options.train.image);
  set.group("how");
  set.add("out", &options.out, "file to write: cluster.json");
  set.add("seconds", &options.seconds, "time for each size that is measured");
  set.add("bucket-cap-mb", &options.train.bucket_cap_mb,
          "largest bucket in which gradients are summed over ranks");
  set.add("seed", &options.train.seed, "of the parameters");
  add_device_options(set, options.shared);
}

// All that is measured is one step, over and over.
void refuse_steps(const train::TrainOptions& options) {
  train::refuse_limit_steps(options.memory_limit);
  if (options.slow.find('@') == std::string::npos) return;
  fail(ExitCode::usage,
       "--slow {}: steps are those of motley train; expected RANK:3x, RANK:+100ms, RANK:gamma(2,50ms) or "
       "RANK:exp(80ms)",
       options.slow);
}

void read(const std::vector<std::string>& arguments, int ranks, ProbeOptions& options) {
  OptionSet set("probe");
  train::TrainOptions& train = options.train;
  train.optimizer.name.clear();
  declare(set, options);
  set.parse(arguments);
  set.require({"out"});
  apply_shared(options.shared, train);
  train.max_epoch = 1;
  train::fill_in(train, [&](const std::string& name) { return set.has(name) && set.given(name); });
  train::check_options(train, ranks);
  refuse_steps(train);
  check_masking_options(set, train.model);
  constexpr double longest_s = 3600;
  if (options.seconds <= 0 || options.seconds > longest_s)
    fail(ExitCode::usage, "--seconds is {}; expected a number above 0 and at most {}", options.seconds,
         longest_s);
}

// Before anything is measured.
void check_out(const std::filesystem::path& out) {
  check_replaceable(out, ExitCode::input);
  const std::filesystem::path directory = out.has_parent_path() ? out.parent_path() : ".";
  std::error_code unknown;
  if (!std::filesystem::is_directory(directory, unknown))
    fail(ExitCode::input, "cannot write {}: there is no directory {}", out.string(), directory.string());
}

std::string summary(const Json& cluster) {
  std::vector<std::vector<std::string>> rows = {
      {"node", "rank", "samples/s", "per micro-batch", "per step", "memory/sample", "model", "fit"}};
  const auto megabytes = [](const Json& bytes) { return report::bytes_text(bytes.get<double>()); };
  constexpr std::size_t most_lines = 64;
  const Json& ranks = cluster["ranks"];
  for (std::size_t r = 0; r < ranks.size() && r < most_lines; ++r) {
    const Json& rank = ranks[r];
    rows.push_back({rank["node"].get<std::string>(), std::to_string(r),
                    fmt::format("{:.4g}", 1 / rank["sample_s"].get<double>()),
                    seconds_text(rank["micro_s"].get<double>()), seconds_text(rank["fixed_s"].get<double>()),
                    megabytes(rank["sample_bytes"]), megabytes(rank["model_bytes"]),
                    fmt::format("{:.0f} %", 100 * rank["measured"]["fit_error"].get<double>())});
  }
  std::string text = table(rows);
  if (ranks.size() > most_lines) text += fmt::format("... and {} more ranks\n", ranks.size() - most_lines);
  const Json& network = cluster["network"];
  if (network.is_null()) return text + "network: not measured, there is one rank\n";
  return text + fmt::format("network: {}/s on each link, latency {}, fit {:.0f} %\n",
                            report::bytes_text(network["bytes_per_s"].get<double>()),
                            seconds_text(network["latency_s"].get<double>()),
                            100 * network["measured"]["fit_error"].get<double>());
}

void warn_of_bad_fits(const Json& cluster) {
  constexpr double much = 0.15;
  const auto is_bad = [](const Json& described) {
    return described["measured"]["fit_error"].get<double>() > much;
  };
  const auto ranks = std::count_if(cluster["ranks"].begin(), cluster["ranks"].end(), is_bad);
  const bool network = !cluster["network"].is_null() && is_bad(cluster["network"]);
  if (ranks == 0 && !network) return;
  log::warn(
      "the fit is off by more than {:.0f} % for {} rank(s){}: either the machines were busy with other "
      "things, or "
      "have more ranks than processors, or a straight line is no good description of them",
      100 * much, ranks, network ? " and the network" : "");
}

}  // namespace

std::string probe_help() {
  OptionSet set("probe");
  ProbeOptions options;
  options.train.optimizer.name.clear();
  declare(set, options);
  return set.help(
      "mpirun -n RANKS motley probe --task TASK --data DIR --out cluster.json [OPTIONS]",
      "Measures every rank (time and memory by micro-batch size) and the network, all ranks at once, for "
      "motley plan.");
}

void probe(const std::vector<std::string>& arguments, const Context& context) {
  ProbeOptions options;
  comm::agree(context.world, "reading the options", [&] { read(arguments, context.world.size(), options); });
  context.session.set_timeout(options.train.timeout_s);
  const comm::Communicator world(context.world.handle(), options.train.timeout_s);
  comm::agree_on_root(world, "looking at --out", [&] { check_out(options.out); });
  train::Probe probe(options.train, options.seconds, world);
  run_or_abort([&] {
    probe.prepare();
    Json cluster;
    {
      report::WorkLine line(report::stdout_is_terminal(), 0);
      cluster = probe.measure([&](const std::string& what) {
        if (world.rank() == 0) line.update([&](double /*seconds*/) { return "measuring " + what; });
      });
    }
    comm::agree_on_root(world, "writing --out", [&] {
      write_file_atomically(options.out, cluster.dump(1) + "\n", ExitCode::input);
      std::fputs(summary(cluster).c_str(), stdout);
      std::fflush(stdout);
      warn_of_bad_fits(cluster);
      log::info("{} is written; motley plan {} says what to make of it", options.out, options.out);
    });
  });
}

}  // namespace motley::cli
