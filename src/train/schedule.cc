#include "train/schedule.h"

#include <algorithm>
#include <cmath>

namespace motley::train {

double learning_rate(const ScheduleOptions& options, std::int64_t step, int epoch) {
  const std::int64_t updates = step - 1;
  const double base = options.lr[std::min(static_cast<std::size_t>(epoch), options.lr.size()) - 1];
  if (options.warmup_updates > 0 && updates <= options.warmup_updates) {
    return base * static_cast<double>(updates) / static_cast<double>(options.warmup_updates);
  }
  if (updates >= options.total_num_update) return options.end_learning_rate;
  const double remaining = 1.0 - static_cast<double>(updates - options.warmup_updates) /
                                     static_cast<double>(options.total_num_update - options.warmup_updates);
  return (base - options.end_learning_rate) * std::pow(remaining, options.power) + options.end_learning_rate;
}

}  // namespace motley::train
