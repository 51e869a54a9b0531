#include "train/meter.h"

#include <algorithm>
#include <cmath>

namespace motley::train {

void StepMeter::add(std::int64_t n, double compute_s, double wait_s, double step_s, std::int64_t samples,
                    std::span<const double> sums) {
  ++steps_;
  samples_ += samples;
  n_ += static_cast<double>(n);
  compute_s_ += compute_s;
  wait_s_ += wait_s;
  step_s_ += step_s;
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
  const double mine[] = {n_ / static_cast<double>(std::max<std::int64_t>(steps_, 1)), compute_s_, wait_s_};
  const std::vector<double> all = world.all_gather(mine, "the timings of all ranks");
  for (std::size_t i = 0; i + 2 < all.size(); i += 3) {
    record.ranks.push_back({static_cast<std::int64_t>(std::llround(all[i])), all[i + 1], all[i + 2]});
  }
  std::fill(sums_.begin(), sums_.end(), 0.0);
  steps_ = samples_ = 0;
  n_ = compute_s_ = wait_s_ = step_s_ = 0;
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
    const double n = (static_cast<double>(earlier.ranks[i].n * earlier.steps) +
                      static_cast<double>(later.ranks[i].n * later.steps)) /
                     steps;
    earlier.ranks[i].n = std::llround(n);
    earlier.ranks[i].compute_s += later.ranks[i].compute_s;
    earlier.ranks[i].wait_s += later.ranks[i].wait_s;
  }
  earlier.steps += later.steps;
  earlier.samples += later.samples;
  earlier.step_s += later.step_s;
  earlier.step = later.step;
  earlier.epoch = later.epoch;
  earlier.lr = later.lr;
  earlier.grad_norm = later.grad_norm;
}

}  // namespace motley::train
