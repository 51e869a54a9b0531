// Validation: the metrics of the current parameters on every validation subset, and which checkpoint is the
// best.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "report/records.h"
#include "train/data.h"
#include "train/evaluate.h"
#include "train/options.h"
#include "train/planner.h"

namespace motley::train {

// The best validation so far, by one metric and direction.
struct Best {
  std::string metric = "loss";
  bool maximize = false;
  double value = 0;
  std::int64_t step = -1;  // -1: none yet

  Json to_json() const;
  // None yet when `json` holds none, or one that was judged by another metric or direction than `wanted`.
  static Best from_json(const Json& json, const Best& wanted);
};

class Judge {
 public:
  // Throws Error(usage) when the task has no such metric as --best-checkpoint-metric.
  Judge(const TrainOptions& options, const comm::Communicator& world, Task& task);

  // Opens the validation subsets. One that was not asked for by name may be absent. Collective.
  void open();
  bool has_data() const { return !sets_.empty(); }

  // Judges the current parameters; the first subset decides whether they are the best. Nothing when some rank wanted to
  // stop on the way. Collective.
  std::optional<std::vector<report::ValidRecord>> judge(Backend& backend, const Position& position,
                                                        const EvaluateOptions& how);

  const Best& best() const { return best_; }
  void restore(const Best& best) { best_ = best; }

 private:
  void consider(const Metrics& metrics, std::int64_t step);

  const TrainOptions& options_;
  const comm::Communicator& world_;
  Task& task_;
  std::vector<DataSet> sets_;
  Best best_;
};

}  // namespace motley::train
