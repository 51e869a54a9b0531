#include "train/meter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace motley::train {
namespace {

void add_times(report::RankTime& sum, const report::RankTime& more) {
  sum.compute_s += more.compute_s;
  sum.wait_s += more.wait_s;
  sum.read_s += more.read_s;
  sum.sleep_s += more.sleep_s;
  sum.micro_s += more.micro_s;
  sum.micro_batches += more.micro_batches;
}

}  // namespace

void StepMeter::add(std::int64_t n, const StepTimes& times, double read_s, double step_s,
                    std::int64_t samples) {
  ++steps_;
  samples_ += samples;
  n_ += static_cast<double>(n);
  step_s_ += step_s;
  const std::vector<double>& micro = times.region.micro_batches_s;
  report::RankTime step;
  step.compute_s = times.region.compute_s;
  step.wait_s = times.wait_s;
  step.read_s = read_s;
  step.sleep_s = times.region.slept_s;
  step.micro_s = std::accumulate(micro.begin(), micro.end(), 0.0);
  step.micro_batches = static_cast<std::int64_t>(micro.size());
  add_times(mine_, step);
}

void StepMeter::add_sums(std::span<const double> sums) {
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += sums[i];
}

report::StepRecord StepMeter::collect(const comm::Communicator& world, const Task& task) {
  report::StepRecord record;
  record.steps = steps_;
  record.samples = samples_;
  record.step_s = step_s_;
  const Metrics metrics = task.metrics(sums_);
  record.loss = metrics.loss;
  record.metrics = metrics.values;
  record.sums = sums_;
  const double mine[] = {n_ / static_cast<double>(std::max<std::int64_t>(steps_, 1)),
                         mine_.compute_s,
                         mine_.wait_s,
                         mine_.read_s,
                         mine_.sleep_s,
                         mine_.micro_s,
                         static_cast<double>(mine_.micro_batches)};
  constexpr std::size_t numbers = std::size(mine);
  const std::vector<double> all = world.all_gather(mine, "the timings of all ranks");
  for (std::size_t i = 0; i + numbers <= all.size(); i += numbers) {
    const double* of = &all[i];
    record.ranks.push_back({of[0], of[1], of[2], of[3], of[4], of[5], std::llround(of[6])});
  }
  std::fill(sums_.begin(), sums_.end(), 0.0);
  steps_ = samples_ = 0;
  n_ = step_s_ = 0;
  mine_ = {};
  return record;
}

void append(report::StepRecord& earlier, const report::StepRecord& later, const Task& task) {
  if (earlier.steps == 0 || earlier.ranks.empty()) {
    earlier = later;
    return;
  }
  for (std::size_t i = 0; i < earlier.sums.size(); ++i) earlier.sums[i] += later.sums[i];
  const Metrics metrics = task.metrics(earlier.sums);
  earlier.loss = metrics.loss;
  earlier.metrics = metrics.values;
  for (std::size_t i = 0; i < earlier.ranks.size(); ++i) {
    const double steps = static_cast<double>(earlier.steps + later.steps);
    earlier.ranks[i].n = (earlier.ranks[i].n * static_cast<double>(earlier.steps) +
                          later.ranks[i].n * static_cast<double>(later.steps)) /
                         steps;
    add_times(earlier.ranks[i], later.ranks[i]);
  }
  earlier.steps += later.steps;
  earlier.samples += later.samples;
  earlier.step_s += later.step_s;
  earlier.step = later.step;
  earlier.epoch = later.epoch;
  earlier.lr = later.lr;
  earlier.grad_norm = later.grad_norm;
  earlier.loss_scale = later.loss_scale;
}

}  // namespace motley::train
