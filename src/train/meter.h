// Adds up what happens in steps, on every rank, and brings it together on all of them now and then.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "report/records.h"
#include "train/stepper.h"
#include "train/task.h"

namespace motley::train {

class StepMeter {
 public:
  explicit StepMeter(std::int64_t sums) : sums_(static_cast<std::size_t>(sums), 0.0) {}

  // One step of this rank, which took step_s in all. `samples` are those of the global batch.
  void add(std::int64_t n, const StepTimes& times, double read_s, double step_s, std::int64_t samples);
  // The sums of the global batches since the last call.
  void add_sums(std::span<const double> sums);
  // Waiting outside of steps.
  void add_wait(double wait_s) { mine_.wait_s += wait_s; }
  bool empty() const { return steps_ == 0; }
  // Gathers what was added since the last call and starts anew. Collective.
  report::StepRecord collect(const comm::Communicator& world, const Task& task);

 private:
  std::vector<double> sums_;
  std::int64_t steps_ = 0, samples_ = 0;
  double n_ = 0, step_s_ = 0;
  report::RankTime mine_;
};

// Joins the record of later steps to that of earlier ones: loss and metrics are made anew of the sums of
// both, times and shares are summed or averaged over steps.
void append(report::StepRecord& earlier, const report::StepRecord& later, const Task& task);

}  // namespace motley::train
