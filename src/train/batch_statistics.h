// Batch norm's statistics over the ranks of a run, and what goes with that: the time waited for other ranks is no work
// (train/region.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "comm/small_sum.h"
#include "models/layer.h"
#include "train/options.h"
#include "train/region.h"
#include "train/task.h"

namespace motley::train {

// Whether batch norm's statistics are those of the whole global batch: each rank then runs its share as one micro-batch,
// and takes part in the pass without one, too.
bool normalizes_global_batches(const TrainOptions& options, Task& task);
// Of float64 that are added up at once: two for each channel of the widest layer with batch norm.
std::size_t most_statistics(const ParameterStore& store);

// Stands for ranks that are not there: a pass that is only measured, or tried out, has batch norm of one sample, too.
class NoStatistics final : public StatisticsSum {
 public:
  void add_up(View /*sums*/) override {}
  // The samples that such a pass of n is told to be of.
  static std::int64_t batch(std::int64_t n) { return n < 2 ? 2 : n; }
};

class BatchStatistics final : public StatisticsSum {
 public:
  // The region must outlive this object, and be open when it adds up.
  BatchStatistics(std::unique_ptr<comm::SmallSum> sum, ComputeRegion& region)
      : sum_(std::move(sum)), region_(region) {}

  // The pass that follows is of this step.
  void begin_step(std::int64_t step);
  void add_up(View sums) override;
  // Waits, with the deadline, until the device has come through the pass: to be called before what waits for it without
  // one.
  void end_step() { sum_->wait(what_.c_str()); }

 private:
  std::unique_ptr<comm::SmallSum> sum_;
  ComputeRegion& region_;
  std::int64_t step_ = 0;
  std::string what_;
  std::int64_t calls_ = 0;  // of the step
};

}  // namespace motley::train
