#include "train/batch_statistics.h"

#include <fmt/format.h>

#include <algorithm>

namespace motley::train {

bool normalizes_global_batches(const TrainOptions& options, Task& task) {
  return options.image.sync_bn && !task.parameters().all_statistics().empty();
}

std::size_t most_statistics(const ParameterStore& store) {
  std::int64_t channels = 0;
  for (const Parameter& statistic : store.all_statistics())
    channels = std::max(channels, statistic.shape.elements());
  return 2 * static_cast<std::size_t>(channels);
}

void BatchStatistics::begin_step(std::int64_t step) {
  step_ = step;
  calls_ = 0;
}

void BatchStatistics::add_up(View sums) {
  what_ = fmt::format("sum {} of batch norm's statistics in step {}", ++calls_, step_);
  region_.begin_wait();
  sum_->add_up(sums, what_.c_str());
  if (region_.is_slow()) sum_->wait(what_.c_str());
  region_.end_wait();
}

}  // namespace motley::train
