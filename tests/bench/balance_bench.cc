// The policies on machines of unequal speed: the program's own trainer, planner, reader and all-reduce,
// with a network whose passes sleep instead of computing, so that any number of ranks on few cores behave
// like separate machines.
//
//   mpirun -n RANKS balance_bench CASE POLICY STEPS [BATCH_MS]     (tests/bench/balance.py runs all of them)
//
// A line of JSON per run; the definitions are in tests/bench/README.md.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "balance/balancer.h"
#include "balance/slow.h"
#include "clocks.h"
#include "comm/backoff.h"
#include "comm/mpi.h"
#include "core/error.h"
#include "core/log.h"
#include "io/image_set.h"
#include "train/trainer.h"

namespace motley {
namespace {

namespace fs = std::filesystem;
using bench::now_s;

constexpr std::int64_t batch = 512, steps_per_epoch = 24, steady_steps = 40;

struct Case {
  std::vector<double> speeds;
  std::string slow = {};  // with {A} {B} for the steps between which a rank is slow
};

// Delays are given as parts of the time that a batch takes at equal shares on equal ranks.
std::map<std::string, Case> cases_for(int ranks, double batch_ms) {
  const auto ones = [&] { return std::vector<double>(static_cast<std::size_t>(ranks), 1.0); };
  const auto constant = [&](double part) { return fmt::format("1:+{:.3f}ms", part * batch_ms); };
  std::map<std::string, Case> cases;
  cases["equal"] = {ones()};
  if (ranks == 2) {
    cases["1:8"] = {{1, 8}};
    for (const double part : {0.35, 0.175, 0.9, 0.45})
      cases[fmt::format("+{}", part)] = {ones(), constant(part)};
    return cases;
  }
  cases["gamma"] = {ones(), fmt::format("1:gamma(2,{:.3f}ms)", 0.25 * batch_ms)};
  cases["exp"] = {ones(), fmt::format("1:exp({:.3f}ms)", 0.4 * batch_ms)};
  cases["slows down"] = {ones(), "1:3x@{A}-"};
  if (ranks == 4) {
    cases["1:1:2:4"] = {{1, 1, 2, 4}};
    cases["1:8"] = {{1, 1, 8, 8}};
  } else {
    cases["1:1:2:4"] = {ones()};
    cases["1:8"] = {ones()};
    for (std::size_t r = 0; r < static_cast<std::size_t>(ranks); ++r) {
      cases["1:1:2:4"].speeds[r] = std::vector<double>{1, 1, 2, 4}[r % 4];
      cases["1:8"].speeds[r] = r % 2 == 0 ? 1 : 8;
    }
  }
  return cases;
}

// A network of one small parameter whose passes take a time in proportion to their samples.
class SleepTask final : public train::Task {
 public:
  explicit SleepTask(double sample_s) : sample_s_(sample_s) {
    store_.add("weight", Shape{4096}, Initializer::ones());
  }
  std::string name() const override { return "mnist"; }
  bool has_subset(const train::DataOptions&, const std::string& subset) const override {
    return subset == "train";
  }
  io::RowSource open(const train::DataOptions& data, const std::string& subset) const override {
    return io::describe_image_set(train::subset_path(data.data, subset)).source;
  }
  void check(const io::RowSource&, std::uint64_t, std::uint64_t) const override {}
  ParameterStore& parameters() override { return store_; }
  void allocate_parameters(Backend& backend, bool training) override { store_.allocate(backend, training); }
  std::size_t memory_bytes(std::int64_t samples, bool) const override {
    return static_cast<std::size_t>(samples);
  }
  std::int64_t sums() const override { return 4; }
  train::Metrics metrics(std::span<const double> sums) const override {
    return {sums[1] > 0 ? sums[0] / sums[1] : 0, sums[1], {}};
  }
  double divisor(std::span<const double> sums) const override { return sums[1]; }
  std::vector<std::string> metric_names() const override { return {}; }
  void train(const Pass& pass, const train::Rows& rows, std::span<const double>, View sums,
             const GradientsDone& done) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(sample_s_ * static_cast<double>(rows.n)));
    sums.as<double>()[1] += static_cast<double>(rows.n);
    if (!pass.accumulate) pass.backend.fill_zero(store_.gradients());
    if (done) done(store_.arena_elements());
  }
  void evaluate(const Pass&, const train::Rows&, View) override {}

 protected:
  void take_memory(Backend&, std::int64_t, bool) override {}
  void release_memory() override {}

 private:
  ParameterStore store_;
  double sample_s_;
};

// The seconds that one step cannot be faster than, whatever the division that was chosen before it.
class Ideal {
 public:
  Ideal(const Case& what, double sample_s, std::uint64_t seed)
      : specs_(balance::parse_slow(what.slow, static_cast<int>(what.speeds.size()))), seed_(seed) {
    for (const double speed : what.speeds) costs_.push_back({0, sample_s / speed});
  }

  // Mean over the steps: constant delays and factors are divided around, random ones by the best fixed share.
  double mean_s(std::int64_t first, std::int64_t last) const {
    const bool random = std::any_of(specs_.begin(), specs_.end(), [](const balance::SlowSpec& spec) {
      return std::any_of(spec.parts.begin(), spec.parts.end(), [](const balance::Slowness& part) {
        return part.kind == balance::Slowness::Kind::gamma ||
               part.kind == balance::Slowness::Kind::exponential;
      });
    });
    if (random) return best_fixed_s(first, last);
    double sum = 0;
    for (std::int64_t step = first; step <= last; ++step)
      sum += balance::ideal_seconds(batch, costs_in(step));
    return sum / static_cast<double>(last - first + 1);
  }

 private:
  std::vector<balance::RankCost> costs_in(std::int64_t step) const {
    std::vector<balance::RankCost> costs = costs_;
    for (std::size_t r = 0; r < costs.size(); ++r) {
      costs[r].sample_s *= specs_[r].factor(step);
      costs[r].fixed_s = specs_[r].delay_s(step, static_cast<int>(r), seed_);
    }
    return costs;
  }

  // Rank 1 is the delayed one; its share is varied, the others divide the rest evenly. The delays are those
  // that the run has.
  double best_fixed_s(std::int64_t first, std::int64_t last) const {
    double best = INFINITY;
    for (std::int64_t n = 0; n <= batch; ++n) {
      const double others =
          costs_[0].sample_s * static_cast<double>(batch - n) / static_cast<double>(costs_.size() - 1);
      double sum = 0;
      for (std::int64_t step = first; step <= last; ++step) {
        const double delayed =
            specs_[1].delay_s(step, 1, seed_) + costs_[1].sample_s * static_cast<double>(n);
        sum += std::max(others, n == 0 ? 0.0 : delayed);
      }
      best = std::min(best, sum / static_cast<double>(last - first + 1));
    }
    return best;
  }

  std::vector<balance::RankCost> costs_;
  std::vector<balance::SlowSpec> specs_;
  std::uint64_t seed_;
};

double mean_of(const std::vector<double>& values, std::size_t first, std::size_t last) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(first),
                         values.begin() + static_cast<std::ptrdiff_t>(last), 0.0) /
         static_cast<double>(last - first);
}

// Steps after `from` until the last two in a row that are both more than 5 % off `value`; a single one is chance.
std::size_t settled_after(const std::vector<double>& steps, std::size_t from, std::size_t to, double value) {
  const auto off = [&](std::size_t i) { return std::abs(steps[i] / value - 1) > 0.05; };
  std::size_t last = from;
  for (std::size_t i = from; i + 1 < to; ++i) {
    if (off(i) && off(i + 1)) last = i + 2;
  }
  return last - from;
}

std::string make_data(const comm::Communicator& world) {
  std::string directory;
  if (world.rank() == 0) {
    std::string name = (fs::temp_directory_path() / "motley-balance-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) fail(ExitCode::input, "cannot make {}", name);
    directory = name;
    constexpr std::uint64_t rows = batch * steps_per_epoch;
    const std::vector<std::uint8_t> zeros(rows, 0);
    io::ImageSetWriter writer(directory + "/train.h5", rows, 1, 1, 1);
    writer.append(zeros.data(), zeros.data(), rows);
    writer.finish();
  }
  return world.broadcast(directory, 0, "the directory of the data");
}

int run(int argc, char** argv) {
  comm::MpiSession session(&argc, &argv);
  const comm::Communicator world(MPI_COMM_WORLD, 120);
  if (argc < 4) fail(ExitCode::usage, "usage: mpirun -n RANKS balance_bench CASE POLICY STEPS [BATCH_MS]");
  const std::string name = argv[1], policy = argv[2];
  const std::int64_t steps = std::atoll(argv[3]);
  const double batch_ms = argc > 4 ? std::atof(argv[4]) : 100;
  const auto cases = cases_for(world.size(), batch_ms);
  const auto found = cases.find(name);
  if (found == cases.end() || steps < 2 * steady_steps)
    fail(ExitCode::usage, "no case {}, or too few steps", name);
  Case what = found->second;
  const std::int64_t change = steps / 2;
  const bool changes = what.slow.find("{A}") != std::string::npos;
  if (changes) what.slow.replace(what.slow.find("{A}"), 3, std::to_string(change + 1));
  // The ideal of every case without delays is BATCH_MS.
  const double speeds = std::accumulate(what.speeds.begin(), what.speeds.end(), 0.0);
  const double sample_s = 1e-3 * batch_ms * speeds / static_cast<double>(batch);

  train::TrainOptions options;
  options.data.data = make_data(world);
  options.data.validate_interval = 0;
  options.save.no_save = true;
  options.save.save_dir = options.data.data + "/run";
  options.report.log_format = "none";
  options.batch.global_batch = batch;
  options.batch.max_sentences = batch;
  options.batch.policy = policy;
  options.max_update = steps;
  options.threads = 1;
  options.slow = what.slow;
  if (policy == "static") {
    options.batch.policy = "static";
    options.batch.weights = fmt::format("{}", fmt::join(what.speeds, ","));
  }
  std::vector<double> step_s;
  double last_s = 0;
  comm::Backoff::use_precise_timer();
  log::set_rank(world.rank());
  {
    train::Trainer trainer(options, world, [&](const train::TrainOptions&) {
      return std::make_unique<SleepTask>(sample_s / what.speeds[static_cast<std::size_t>(world.rank())]);
    });
    trainer.prepare();
    trainer.observe([&](const train::StepResult&) {
      const double now = now_s();
      step_s.push_back(now - last_s);
      last_s = now;
    });
    last_s = now_s();
    trainer.run();
  }
  world.barrier("the end");
  if (world.rank() != 0) return 0;
  fs::remove_all(options.data.data);

  const Ideal ideal(what, sample_s, options.seed);
  const auto all = static_cast<std::size_t>(steps),
             before = static_cast<std::size_t>(changes ? change : steps);
  const bool random = name == "gamma" || name == "exp";
  // Random delays are averaged over all steps after the first 40.
  const std::size_t first = random ? 40 : all - steady_steps;
  const double final_s = mean_of(step_s, first, all);
  const double ideal_s = ideal.mean_s(static_cast<std::int64_t>(first) + 1, steps);
  const double final_before_s = mean_of(step_s, before - steady_steps / 2, before);
  std::string line = fmt::format(
      R"({{"bench":"balance","ranks":{},"case":"{}","policy":"{}","steps":{},"step_ms":{:.3f},"ideal_ms":{:.3f},"ratio":{:.4f})",
      world.size(), name, policy, steps, 1e3 * final_s, 1e3 * ideal_s, final_s / ideal_s);
  if (!random)
    line += fmt::format(R"(,"settled_steps":{})", settled_after(step_s, 1, before, final_before_s));
  if (changes)
    line += fmt::format(R"(,"settled_steps_after_change":{})", settled_after(step_s, before, all, final_s));
  fmt::print("{}}}\n", line);
  return 0;
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  try {
    return motley::run(argc, argv);
  } catch (const motley::Error& error) {
    fmt::print(stderr, "balance_bench: {}\n", error.what());
    return 1;
  }
}
