// What is known about a step, for metrics.jsonl, the progress line and the summary.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace motley::report {

struct RankTime {
  double n = 0;          // share: samples of the global batch, mean over the steps
  double compute_s = 0;  // forward, backward, optimizer; injected slowness counts as compute
  double wait_s = 0;     // blocked on other ranks
  double read_s = 0;     // blocked on the reader of the training data
  double sleep_s = 0;    // part of compute_s: injected slowness (--slow)
  double micro_s = 0;    // part of compute_s: in micro-batches, by the device's marks
  std::int64_t micro_batches = 0;
};

// Covers `steps` steps ending with `step`; times are sums over them, loss and metrics means over their
// samples.
struct StepRecord {
  std::int64_t step = 0;  // counts from 1
  std::int64_t steps = 1;
  int epoch = 1;  // counts from 1
  double loss = 0;
  double lr = 0;
  double grad_norm = 0;  // of the last step, before clipping
  double loss_scale = 0;  // after the last step; 0: there is none
  std::int64_t samples = 0;
  double step_s = 0;                                    // wall time of all `steps`
  std::vector<std::pair<std::string, double>> metrics;  // {"accuracy", 0.87}, in the order to print
  std::vector<double> sums;                             // what the task makes loss and metrics of
  std::vector<RankTime> ranks;
};

struct ValidRecord {
  std::string subset;
  std::int64_t step = 0;
  int epoch = 1;
  double loss = 0;
  std::int64_t samples = 0;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> metrics;
};

// How far the run is to go, for the time left.
struct RunLength {
  std::int64_t total_steps = 0;  // 0: not known
  int total_epochs = 0;          // 0: not known
};

}  // namespace motley::report
