#include "balance/simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>

#include "core/error.h"
#include "core/philox.h"

namespace motley::balance {
namespace {

// Log-normal with mean 1, from one counted normal number.
class Noise {
 public:
  Noise(double deviation, std::uint64_t seed)
      : sigma_(std::sqrt(std::log1p(deviation * deviation))), seed_(seed) {}

  double factor(std::int64_t step, std::size_t rank) const {
    if (sigma_ == 0) return 1;
    const RandomKey key(seed_, Purpose::noise, 0, static_cast<std::uint32_t>(step));
    const Philox4 bits = random_block(key, static_cast<std::uint32_t>(rank), 0);
    const double radius = std::sqrt(-2 * std::log((bits.x + 0.5) * 0x1p-32));
    const double normal = radius * std::cos(2 * std::numbers::pi * bits.y * 0x1p-32);
    return std::exp(sigma_ * normal - sigma_ * sigma_ / 2);
  }

 private:
  double sigma_;
  std::uint64_t seed_;
};

struct Window {
  std::int64_t first_step = 1, steps = 0;
  // By step and rank. From the third step of a window on, shares stay as they are.
  std::array<std::vector<std::int64_t>, 3> shares;

  const std::vector<std::int64_t>& shares_of(std::size_t step) const {
    return shares[std::min(step, shares.size() - 1)];
  }
};

class Run {
 public:
  Run(const Cluster& cluster, const SimulationOptions& options);
  Simulation play();

 private:
  std::optional<Window> next_window();
  std::vector<RankTimes> run(const Window& window, Simulation& result) const;

  const Cluster& cluster_;
  const SimulationOptions& options_;
  std::vector<std::size_t> usable_;  // ranks that the balancer knows of
  std::vector<std::int64_t> micro_batches_;
  double network_s_ = 0;
  double idle_s_ = 0;  // of the slowest rank that holds no sample
  Noise noise_;
  std::optional<Balancer> balancer_;
  std::int64_t windows_ = 0, planned_ = 0;  // windows and steps that have been planned
};

Run::Run(const Cluster& cluster, const SimulationOptions& options)
    : cluster_(cluster), options_(options), noise_(options.noise, options.seed) {
  BalancerOptions balancer;
  for (std::size_t r = 0; r < cluster.ranks.size(); ++r) {
    const std::int64_t micro = largest_micro_batch(cluster.ranks[r], cluster.max_sentences);
    if (micro == 0) {
      idle_s_ = std::max(idle_s_, cluster.ranks[r].fixed_s);
      continue;
    }
    usable_.push_back(r);
    micro_batches_.push_back(micro);
    if (!options.weights.empty()) balancer.weights.push_back(options.weights[r]);
  }
  if (usable_.empty())
    fail(ExitCode::usage, "no rank has the memory for the model and a single sample; expected one that has");
  network_s_ = all_reduce_seconds(cluster);
  balancer.policy = options.policy;
  balancer.ranks = static_cast<int>(usable_.size());
  balancer.batch = options.global_batch;
  balancer.window = options.window;
  balancer_.emplace(balancer);
}

std::optional<Window> Run::next_window() {
  if (planned_ == options_.steps) return std::nullopt;
  const std::int64_t longest =
      options_.policy == PolicyKind::automatic ? ramped_window(windows_, options_.window) : options_.window;
  const std::int64_t of_epoch = planned_ % options_.steps_per_epoch;
  Window window;
  window.first_step = planned_ + 1;
  window.steps = std::min({longest, options_.steps_per_epoch - of_epoch, options_.steps - planned_});
  balancer_->plan(static_cast<int>(planned_ / options_.steps_per_epoch + 1), options_.global_batch);
  for (std::size_t step = 0; step < window.shares.size(); ++step)
    window.shares[step] = balancer_->shares(options_.global_batch, static_cast<std::int64_t>(step));
  planned_ += window.steps;
  ++windows_;
  return window;
}

std::vector<RankTimes> Run::run(const Window& window, Simulation& result) const {
  std::vector<RankTimes> times(usable_.size());
  const auto steps = static_cast<std::size_t>(window.steps);
  std::vector<double> slowest(steps, idle_s_), expected(steps, idle_s_);
  const SlowSpec not_slow;
  for (std::size_t i = 0; i < usable_.size(); ++i) {
    const std::size_t rank = usable_[i];
    const SlowSpec& slow = options_.slow.empty() ? not_slow : options_.slow[rank];
    times[i].reserve(steps);
    for (std::size_t s = 0; s < steps; ++s) {
      const std::int64_t step = window.first_step + static_cast<std::int64_t>(s), n = window.shares_of(s)[i];
      const double compute_s = compute_seconds(cluster_.ranks[rank], micro_batches_[i], n);
      double seconds = compute_s * noise_.factor(step, rank), mean = compute_s;
      if (!slow.empty()) {
        const double factor = slow.factor(step);
        const bool delayed = n > 0;
        seconds =
            seconds * factor + (delayed ? slow.delay_s(step, static_cast<int>(rank), options_.seed) : 0);
        mean = mean * factor + (delayed ? slow.mean_delay_s(step) : 0);
      }
      times[i].push_back({n, seconds});
      slowest[s] = std::max(slowest[s], seconds);
      expected[s] = std::max(expected[s], mean);
    }
  }
  for (std::size_t s = 0; s < steps; ++s) {
    result.step_s.push_back(slowest[s] + network_s_);
    result.expected_s.push_back(expected[s] + network_s_);
  }
  return times;
}

Simulation Run::play() {
  Simulation result;
  std::optional<Window> window = next_window();
  while (window) {
    std::optional<Window> ahead = next_window();
    balancer_->observe(run(*window, result));
    if (!ahead) {
      result.shares.assign(cluster_.ranks.size(), 0);
      for (std::size_t i = 0; i < usable_.size(); ++i) result.shares[usable_[i]] = window->shares.back()[i];
    }
    window = std::move(ahead);
  }
  result.changes = balancer_->changes();
  return result;
}

}  // namespace

std::int64_t Simulation::steps_to_settle() const {
  constexpr double close = 0.05;
  std::size_t first = expected_s.size();
  while (first > 0 && std::abs(expected_s[first - 1] / expected_s.back() - 1) <= close) --first;
  return static_cast<std::int64_t>(first);
}

double Simulation::settled_s() const {
  const std::size_t first = std::min(static_cast<std::size_t>(steps_to_settle()), step_s.size() * 3 / 4);
  const auto begin = step_s.begin() + static_cast<std::ptrdiff_t>(first);
  return std::accumulate(begin, step_s.end(), 0.0) / static_cast<double>(step_s.end() - begin);
}

Simulation simulate(const Cluster& cluster, const SimulationOptions& options) {
  for (const std::int64_t number :
       {options.global_batch, options.steps, options.steps_per_epoch, options.window}) {
    if (number < 1) fail(ExitCode::usage, "a simulation was asked for with {}; expected at least 1", number);
  }
  return Run(cluster, options).play();
}

std::vector<double> speeds(const Cluster& cluster) {
  std::vector<double> list;
  list.reserve(cluster.ranks.size());
  for (const ClusterRank& rank : cluster.ranks) list.push_back(1 / rank.sample_s);
  return list;
}

}  // namespace motley::balance
