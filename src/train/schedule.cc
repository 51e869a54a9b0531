#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace motley::train {

namespace {

double cosine(const ScheduleOptions& options, double base, std::int64_t updates, int epoch) {
  const bool by_epochs = options.unit == "epoch";
  const std::int64_t done =
      by_epochs ? epoch - 1 : std::max<std::int64_t>(updates - options.warmup_updates, 0);
  const std::int64_t all = by_epochs ? options.epochs : options.total_num_update - options.warmup_updates;
  if (done >= all) return options.end_learning_rate;
  const double part = static_cast<double>(done) / static_cast<double>(all);
  return options.end_learning_rate +
         (base - options.end_learning_rate) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

double steps(const ScheduleOptions& options, double base, std::int64_t updates, int epoch) {
  const std::int64_t done = options.unit == "epoch" ? epoch - 1 : updates;
  const auto& milestones = options.milestones;
  const std::int64_t falls =
      options.step_size > 0
          ? done / options.step_size
          : std::upper_bound(milestones.begin(), milestones.end(), done) - milestones.begin();
  return base * std::pow(options.gamma, static_cast<double>(falls));
}

}  // namespace

double learning_rate(const ScheduleOptions& options, std::int64_t step, int epoch) {
  const std::int64_t updates = step - 1;
  const double base = options.lr[std::min(static_cast<std::size_t>(epoch), options.lr.size()) - 1];
  if (options.scheduler != "polynomial") {
    const double rate = options.scheduler == "cosine" ? cosine(options, base, updates, epoch)
                                                      : steps(options, base, updates, epoch);
    if (updates >= options.warmup_updates) return rate;
    return rate * static_cast<double>(updates) / static_cast<double>(options.warmup_updates);
  }
  if (options.warmup_updates > 0 && updates <= options.warmup_updates) {
    return base * static_cast<double>(updates) / static_cast<double>(options.warmup_updates);
  }
  if (updates >= options.total_num_update) return options.end_learning_rate;
  const double remaining = 1.0 - static_cast<double>(updates - options.warmup_updates) /
                                     static_cast<double>(options.total_num_update - options.warmup_updates);
  return (base - options.end_learning_rate) * std::pow(remaining, options.power) + options.end_learning_rate;
}

}  // namespace motley::train
