// Adds up what happens in steps, on every rank, and brings it together on all of them now and then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "report/records.h"
#include "train/task.h"

namespace motley::train {

class StepMeter {
 public:
  explicit StepMeter(std::int64_t sums) : sums_(static_cast<std::size_t>(sums), 0.0) {}

  // One step of this rank. `sums` are those of the global batch.
  void add(std::int64_t n, double compute_s, double wait_s, double step_s, std::int64_t samples,
           std::span<const double> sums);
  bool empty() const { return steps_ == 0; }
  // Gathers what was added since the last call and starts anew. Collective.
  report::StepRecord collect(const comm::Communicator& world, const Task& task);

 private:
  std::vector<double> sums_;
  std::int64_t steps_ = 0, samples_ = 0;
  double n_ = 0, compute_s_ = 0, wait_s_ = 0, step_s_ = 0;
};

// Joins the record of later steps to that of earlier ones: loss and metrics are made anew of the sums of both,
// times and shares are summed or averaged over steps.
void append(report::StepRecord& earlier, const report::StepRecord& later, const Task& task);

}  // namespace motley::train
