#include <cstdio>

#include "balance/cluster.h"
#include "balance/plan.h"
#include "balance/simulator.h"
#include "cli/command.h"
#include "cli/option_set.h"
#include "cli/plan_text.h"
#include "comm/agree.h"
#include "core/files.h"
#include "core/quantity.h"

namespace motley::cli {
namespace {

// As in motley train.
constexpr std::int64_t default_max_sentences = 64;
constexpr std::int64_t most_steps = 10000000, longest_window = 4096;

struct PlanOptions {
  std::string file, nodes;
  std::int64_t global_batch = 0, max_sentences = 0;
  double sample_ms = 1, micro_ms = 0;
  std::string model_bytes, sample_bytes, gradient_bytes, network;
  std::vector<std::string> policies = {"sync", "static", "dp", "edp", "auto"};
  balance::SimulationOptions simulation;
  std::string slow;
  std::string log_format = "simple";
};

void declare(OptionSet& set, PlanOptions& options) {
  set.positional("FILE", &options.file, "cluster.json, as motley probe writes it");
  set.group("a made-up cluster, instead of FILE");
  set.add("nodes", &options.nodes,
          "NAMExCOUNT:SPEED/MEMORY+TIME, with commas; all but NAME:SPEED may be left out; TIME is per step");
  set.add("sample-ms", &options.sample_ms, "ms per sample at speed 1");
  set.add("micro-ms", &options.micro_ms, "ms per micro-batch at speed 1, besides its samples");
  set.add("model-bytes", &options.model_bytes, "parameters, gradients and optimizer: 1.3G (powers of 1024)");
  set.add("sample-bytes", &options.sample_bytes, "memory per sample of a micro-batch: 40M");
  set.group("the run; with FILE also to see what another would do");
  set.add("global-batch", &options.global_batch, "samples per step; 0: FILE's, or max-sentences x ranks");
  set.add("max-sentences", &options.max_sentences, "largest micro-batch of one rank; 0: FILE's, or 64");
  set.add("gradient-bytes", &options.gradient_bytes, "what is summed over ranks in a step: 440M");
  set.add("network", &options.network, "BYTES_PER_S/LATENCY of every link: 10G/20us (powers of 1000)");
  set.group("simulated policies");
  balance::SimulationOptions& simulation = options.simulation;
  set.add("policy", &options.policies, "which of them, with commas; none: do not simulate");
  set.add("steps", &simulation.steps, "steps to simulate");
  set.add("steps-per-epoch", &simulation.steps_per_epoch, "dp and edp move once per epoch");
  set.add("window", &simulation.window, "steps that are planned at once");
  set.add("slow", &options.slow, "ranks that are slower still, as in motley train: 1:3x@50-100");
  set.add("noise", &simulation.noise, "relative standard deviation of compute times");
  set.add("seed", &simulation.seed, "of the noise and the delays");
  set.group("what is shown");
  set.add("log-format", &options.log_format, "simple or json");
}

std::int64_t bytes_option(const char* name, const std::string& text) {
  if (text.empty()) return 0;
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes > 0x1p53)
    fail(ExitCode::usage, "--{} is \"{}\"; expected a number of bytes such as 440M", name, text);
  return static_cast<std::int64_t>(*bytes);
}

balance::Network network_option(const std::string& text) {
  const std::size_t slash = text.find('/');
  const auto rate = parse_bytes_per_s(text.substr(0, slash));
  const auto latency =
      slash == std::string::npos ? std::optional(0.0) : parse_seconds(text.substr(slash + 1));
  if (!rate || *rate == 0 || !latency) {
    fail(ExitCode::usage,
         "--network is \"{}\"; expected bytes per second above 0, and perhaps a latency: 10G/20us", text);
  }
  return {*latency, *rate};
}

// Where there can be no more than one of two sources, and what only one of them has use for.
void check_sources(const OptionSet& set, const PlanOptions& options) {
  if (options.file.empty() && options.nodes.empty())
    fail(ExitCode::usage, "FILE or --nodes is missing; motley plan --help says more");
  if (options.file.empty()) return;
  for (const char* name : {"nodes", "sample-ms", "micro-ms", "model-bytes", "sample-bytes"}) {
    if (set.given(name))
      fail(ExitCode::usage, "--{} is of a made-up cluster, but {} describes one; leave one of them out", name,
           options.file);
  }
}

void check_numbers(const PlanOptions& options) {
  const auto in_range = [](const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most)
      fail(ExitCode::usage, "--{} is {}; expected {} to {}", name, value, least, most);
  };
  in_range("global-batch", options.global_batch, 0, balance::largest_batch);
  in_range("max-sentences", options.max_sentences, 0, balance::largest_batch);
  in_range("steps", options.simulation.steps, 1, most_steps);
  in_range("steps-per-epoch", options.simulation.steps_per_epoch, 1, most_steps);
  in_range("window", options.simulation.window, 1, longest_window);
  const auto not_negative = [](const char* name, double value) {
    if (value < 0) fail(ExitCode::usage, "--{} is {}; expected at least 0", name, value);
  };
  not_negative("noise", options.simulation.noise);
  constexpr double most_noise = 10;
  if (options.simulation.noise > most_noise)
    fail(ExitCode::usage, "--noise is {}; expected at most {}", options.simulation.noise, most_noise);
  not_negative("micro-ms", options.micro_ms);
  if (options.sample_ms <= 0)
    fail(ExitCode::usage, "--sample-ms is {}; expected a number above 0", options.sample_ms);
  if (options.log_format != "simple" && options.log_format != "json")
    fail(ExitCode::usage, "--log-format is \"{}\"; expected simple or json", options.log_format);
}

std::vector<balance::PolicyKind> policies_of(const PlanOptions& options) {
  std::vector<balance::PolicyKind> kinds;
  if (options.policies == std::vector<std::string>{"none"}) return kinds;
  for (const std::string& name : options.policies) kinds.push_back(balance::parse_policy(name));
  return kinds;
}

balance::Cluster read_cluster(const OptionSet& set, const PlanOptions& options) {
  balance::Cluster cluster;
  if (!options.file.empty()) {
    const Json json = parse_json(read_file(options.file, ExitCode::input), options.file, ExitCode::input);
    cluster = balance::cluster_from_json(json, options.file);
  } else {
    cluster.max_sentences = default_max_sentences;
    cluster.ranks = balance::parse_nodes(options.nodes, {options.sample_ms / 1e3, options.micro_ms / 1e3,
                                                         bytes_option("model-bytes", options.model_bytes),
                                                         bytes_option("sample-bytes", options.sample_bytes)});
  }
  if (set.given("network")) cluster.network = network_option(options.network);
  if (set.given("gradient-bytes"))
    cluster.gradient_bytes = bytes_option("gradient-bytes", options.gradient_bytes);
  if (options.max_sentences > 0) cluster.max_sentences = options.max_sentences;
  if (options.global_batch > 0) cluster.global_batch = options.global_batch;
  return cluster;
}

// The batch of a run that was told none.
std::int64_t default_batch(const balance::Cluster& cluster) {
  const std::int64_t batch = cluster.max_sentences * static_cast<std::int64_t>(cluster.ranks.size());
  if (batch > balance::largest_batch) {
    fail(ExitCode::usage,
         "the global batch, max-sentences x ranks, is {}; expected at most {}: --global-batch sets another",
         batch, balance::largest_batch);
  }
  return batch;
}

std::vector<PolicyResult> simulate(const balance::Cluster& cluster, const PlanOptions& options,
                                   std::int64_t global_batch) {
  std::vector<PolicyResult> results;
  balance::SimulationOptions how = options.simulation;
  how.global_batch = global_batch;
  if (!options.slow.empty())
    how.slow = balance::parse_slow(options.slow, static_cast<int>(cluster.ranks.size()));
  for (const balance::PolicyKind policy : policies_of(options)) {
    how.policy = policy;
    how.weights.clear();
    if (policy == balance::PolicyKind::fixed) how.weights = balance::speeds(cluster);
    balance::Simulation run = balance::simulate(cluster, how);
    results.push_back({policy, run.settled_s(), run.steps_to_settle(), run.changes, std::move(run.shares)});
  }
  return results;
}

void print_plan(const OptionSet& set, const PlanOptions& options) {
  const balance::Cluster cluster = read_cluster(set, options);
  PlanReport report{
      .cluster = cluster, .plan = {}, .batch_source = {}, .remarks = {}, .steps = 0, .policies = {}};
  std::int64_t batch = cluster.global_batch;
  if (batch == 0) {
    batch = default_batch(cluster);
    report.batch_source = fmt::format(" ({} x {} ranks, as motley train would take)", cluster.max_sentences,
                                      cluster.ranks.size());
  }
  report.plan = balance::make_plan(cluster, batch);
  if (options.file.empty() && !set.given("sample-ms")) {
    report.remarks.push_back(fmt::format(
        "--sample-ms was not given: seconds are those of {} ms per sample at speed 1; only their ratios "
        "mean something, and times given in seconds do not compare",
        options.sample_ms));
  }
  report.steps = options.simulation.steps;
  report.policies = simulate(cluster, options, batch);
  const std::string text = options.log_format == "json" ? plan_json(report).dump() + "\n" : plan_text(report);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

std::string plan_help() {
  OptionSet set("plan");
  PlanOptions options;
  declare(set, options);
  return set.help(
      "motley plan FILE [OPTIONS]\n       motley plan --nodes 'A100x4:1.0/40G, P100x2:0.21/16G' [OPTIONS]",
      "Says how a cluster would divide a global batch, what a step would take and what limits it, which "
      "nodes are worth\nusing, and how the policies would do.");
}

void plan(const std::vector<std::string>& arguments, const Context& context) {
  PlanOptions options;
  OptionSet set("plan");
  declare(set, options);
  comm::agree(context.world, "reading the options", [&] {
    set.parse(arguments);
    check_sources(set, options);
    check_numbers(options);
    policies_of(options);
  });
  comm::agree_on_root(context.world, "planning", [&] { print_plan(set, options); });
}

}  // namespace motley::cli
