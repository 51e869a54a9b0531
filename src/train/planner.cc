#include "train/planner.h"

#include <algorithm>
#include <numeric>

#include "balance/balancer.h"
#include "balance/shares.h"
#include "core/clock.h"
#include "core/error.h"

namespace motley::train {
namespace {

constexpr std::size_t numbers_per_step = 3;  // that a rank is sent, besides its sample ids

}  // namespace

std::vector<io::SlotRun> slot_runs(const WindowPlan& window) {
  std::vector<io::SlotRun> runs;
  for (const StepPlan& step : window.steps) {
    runs.push_back({static_cast<std::uint32_t>(step.step), static_cast<std::uint32_t>(step.offset),
                    static_cast<std::uint64_t>(step.n)});
  }
  return runs;
}

ShareRule in_proportion(std::vector<double> weights) {
  return [weights = std::move(weights)](const StepPlan& step, std::int64_t /*step_in_window*/) {
    return balance::proportional_shares(step.batch, weights);
  };
}

Planner::Planner(const comm::Communicator& world, const PlannerOptions& options, const Position& start)
    : world_(world), options_(options), at_(start) {
  MOTLEY_CHECK(options.samples >= 1);
  if (world.rank() == 0)
    order_.emplace(OrderOptions{options.samples, options.seed, options.shards, options.pool_rows});
}

// Every rank derives the steps from its own copy of the position: only shares and ids have to be sent.
std::vector<StepPlan> Planner::steps_of_next_window() {
  std::vector<StepPlan> steps;
  const auto samples = static_cast<std::int64_t>(options_.samples);
  const std::int64_t length =
      options_.ramp ? balance::ramped_window(windows_, options_.window) : options_.window;
  ++windows_;
  while (static_cast<std::int64_t>(steps.size()) < length) {
    if (at_.samples >= samples) {
      if (!steps.empty()) break;  // a window does not reach into the next epoch
      ++at_.epoch;
      at_.samples = 0;
    }
    if (options_.max_epoch > 0 && at_.epoch > options_.max_epoch) break;
    if (options_.max_step > 0 && at_.step >= options_.max_step) break;
    StepPlan plan;
    plan.step = ++at_.step;
    plan.epoch = at_.epoch;
    plan.batch = std::min(options_.global_batch(at_.epoch), samples - at_.samples);
    at_.samples += plan.batch;
    plan.ends_epoch = at_.samples == samples;
    steps.push_back(plan);
  }
  return steps;
}

// What rank r is sent: offset, n and the number of active ranks of every step, then its sample ids.
std::vector<std::vector<std::uint64_t>> Planner::draw(const std::vector<StepPlan>& steps,
                                                      std::int64_t first_sample, const ShareRule& rule) {
  std::vector<std::vector<std::uint64_t>> parts(static_cast<std::size_t>(world_.size()));
  const int epoch = steps.front().epoch;
  const bool shuffled = options_.shuffle && epoch > options_.unshuffled_epochs;

  std::vector<std::vector<std::int64_t>> shares, offsets;
  for (const StepPlan& step : steps) {
    shares.push_back(rule(step, static_cast<std::int64_t>(shares.size())));
    MOTLEY_CHECK(shares.back().size() == parts.size());
    offsets.push_back(balance::share_offsets(shares.back()));
    const auto idle = static_cast<std::size_t>(std::count(shares.back().begin(), shares.back().end(), 0));
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      parts[rank].push_back(static_cast<std::uint64_t>(offsets.back()[rank]));
      parts[rank].push_back(static_cast<std::uint64_t>(shares.back()[rank]));
      parts[rank].push_back(parts.size() - idle);
    }
  }
  auto place = static_cast<std::uint64_t>(first_sample);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto batch = static_cast<std::uint64_t>(steps[i].batch);
    std::vector<std::uint64_t> samples(batch);
    if (shuffled) {
      samples = order_->step(epoch, place, batch);
    } else {
      std::iota(samples.begin(), samples.end(), place);
    }
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      const auto first = samples.begin() + offsets[i][rank];
      parts[rank].insert(parts[rank].end(), first, first + shares[i][rank]);
    }
    place += batch;
  }
  return parts;
}

std::optional<WindowPlan> Planner::next(const ShareRule& shares) {
  WindowPlan window;
  window.steps = steps_of_next_window();
  if (window.steps.empty()) return std::nullopt;
  std::int64_t in_window = 0;
  for (const StepPlan& step : window.steps) in_window += step.batch;

  std::vector<std::vector<std::uint64_t>> parts;
  if (world_.rank() == 0) {
    const double started_s = now_s();
    parts = draw(window.steps, at_.samples - in_window, shares);
    drawing_s_ += now_s() - started_s;
  }
  const std::string what = fmt::format("the plan of {} step {}", options_.purpose, window.steps.front().step);
  std::vector<std::uint64_t> mine = world_.scatter(parts, 0, what.c_str());

  const std::size_t head = numbers_per_step * window.steps.size();
  std::int64_t expected = static_cast<std::int64_t>(head);
  for (std::size_t i = 0; i < window.steps.size(); ++i) {
    const std::uint64_t* numbers = &mine.at(numbers_per_step * i);
    window.steps[i].offset = static_cast<std::int64_t>(numbers[0]);
    window.steps[i].n = static_cast<std::int64_t>(numbers[1]);
    window.steps[i].active = static_cast<std::int64_t>(numbers[2]);
    expected += window.steps[i].n;
  }
  MOTLEY_CHECK(static_cast<std::int64_t>(mine.size()) == expected);
  window.rows.assign(mine.begin() + static_cast<std::ptrdiff_t>(head), mine.end());
  return window;
}

std::int64_t steps_per_epoch(const PlannerOptions& options, int epoch) {
  const std::int64_t batch = options.global_batch(epoch);
  return (static_cast<std::int64_t>(options.samples) + batch - 1) / batch;
}

std::int64_t total_steps(const PlannerOptions& options) {
  if (options.max_epoch == 0) return options.max_step;
  // The batch does not change any more after the epochs that --update-freq lists, which are few.
  constexpr int epochs_that_differ = 1000;
  std::int64_t total = 0;
  const int single = std::min(options.max_epoch, epochs_that_differ);
  for (int epoch = 1; epoch <= single; ++epoch) total += steps_per_epoch(options, epoch);
  const double rest = static_cast<double>(options.max_epoch - single);
  const std::int64_t last = steps_per_epoch(options, single);
  constexpr double most = 9e18;
  if (static_cast<double>(total) + rest * static_cast<double>(last) > most) return options.max_step;
  total += static_cast<std::int64_t>(rest) * last;
  return options.max_step > 0 ? std::min(total, options.max_step) : total;
}

}  // namespace motley::train
