// Measures what a run would meet: how long every rank takes for micro-batches of all sizes and what memory
// they need, what a step costs besides, and how fast the network sums gradients. All ranks measure at the
// same time, as they work in training: ranks that share a machine feel each other.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "balance/cluster.h"
#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "core/json.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "train/data.h"
#include "train/optimizer.h"
#include "train/options.h"
#include "train/region.h"
#include "train/task.h"
#include "train/update.h"

namespace motley::train {

// Told on rank 0 what is measured next.
using ProbeListener = std::function<void(const std::string& what)>;

class Probe {
 public:
  // Each size is measured for about `seconds`, and at least three times. --slow and --memory-limit hold as in
  // step 1; that they name steps is for the caller to refuse.
  Probe(const TrainOptions& options, double seconds, const comm::Communicator& world);

  // Opens data and device and builds the model. Collective; AgreedError on every rank when anything is wrong.
  void prepare();
  // The description of the cluster, as cluster.json has it, with the measured points beside what was fitted
  // to them (docs/file-formats.md). On rank 0; null elsewhere. Collective.
  Json measure(const ProbeListener& listener);

 private:
  struct SizePoint {
    std::int64_t n = 0;
    double seconds = 0;
    std::int64_t bytes = 0;  // besides the model's own
  };
  struct ReducePoint {
    std::int64_t bytes = 0;
    double seconds = 0;
  };

  void read_rows();
  bool reserve(std::int64_t n);
  SizePoint measure_size(std::int64_t n);
  double pass_seconds(std::int64_t n);
  double update_seconds();
  std::vector<SizePoint> measure_sizes(const ProbeListener& listener);
  std::vector<ReducePoint> measure_network(const ProbeListener& listener);
  double reduce_seconds(std::int64_t bytes);
  Json describe(Json ranks, const std::vector<ReducePoint>& reduces) const;
  Json describe_rank(const std::vector<SizePoint>& points, double fixed_s) const;

  TrainOptions options_;
  double seconds_;
  const comm::Communicator& world_;
  std::unique_ptr<Backend> backend_;  // before what holds its memory
  std::unique_ptr<Task> task_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<Update> update_;
  std::unique_ptr<ComputeRegion> region_;
  // A sum under way when something fails outlives the call that began it.
  Buffer reduced_;
  std::unique_ptr<comm::GradientReducer> reducer_;
  DataSet data_;
  io::Window rows_;
  std::vector<double> totals_;
  std::string node_;
  std::int64_t model_bytes_ = 0;
  std::int64_t updates_ = 0;  // made so far
  double mean_delay_s_ = 0;   // of a batch, that --slow says
};

// 1, 2, 4, ... and `most` itself.
std::vector<std::int64_t> probe_sizes(std::int64_t most);

}  // namespace motley::train
