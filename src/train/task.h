// A task: a data format, a network, a loss. The trainer knows nothing else of what it trains.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/row_source.h"
#include "io/sample_reader.h"
#include "models/layer.h"
#include "models/parameter_store.h"
#include "train/options.h"

namespace motley::train {

// What the sums of a batch come to. Means over what counts for the task (samples, masked tokens).
struct Metrics {
  double loss = 0;
  double count = 0;
  std::vector<std::pair<std::string, double>> values;  // {"accuracy", 0.87}
};

// Rows [first, first + n) of a window: the samples of one micro-batch.
struct Rows {
  const io::RowSource& source;
  const io::Window& window;
  std::int64_t first = 0, n = 0;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string name() const = 0;

  // Whether --data has this subset, on this rank alone; Error(input) when --data is nothing that could have
  // any.
  virtual bool has_subset(const DataOptions& data, const std::string& subset) const = 0;
  // Describes the data of a subset, on this rank alone; Error(input) when it is not there, or not what this
  // task trains on.
  virtual io::RowSource open(const DataOptions& data, const std::string& subset) const = 0;
  // Looks at the contents of rows [first, first + count) before training begins, on this rank alone;
  // Error(input) naming the row. BERT records are checked when they are read instead (io/bert_check.h).
  virtual void check(const io::RowSource& source, std::uint64_t first, std::uint64_t count) const = 0;

  virtual ParameterStore& parameters() = 0;
  // Device memory for micro-batches of up to max_micro_batch samples; parameters too.
  virtual void allocate(Backend& backend, std::int64_t max_micro_batch, bool training) = 0;

  // A batch is judged by sums (float64, device memory) that are added up over micro-batches and ranks.
  // sums[0] is the summed loss, sums[1] what it and the summed gradient are divided by, once (law 2).
  virtual std::int64_t sums() const = 0;
  virtual Metrics metrics(std::span<const double> sums) const = 0;
  // Names that metrics() gives besides "loss", for --best-checkpoint-metric.
  virtual std::vector<std::string> metric_names() const = 0;

  // Forward and backward pass; adds to sums and sets (or, with pass.accumulate, adds to) the gradients of the
  // summed loss.
  virtual void train(const Pass& pass, const Rows& rows, View sums, const GradientsDone& done) = 0;
  virtual void evaluate(const Pass& pass, const Rows& rows, View sums) = 0;
};

// Error(usage) for a name that no task has.
std::unique_ptr<Task> make_task(const std::string& name);
std::vector<std::string> task_names();

}  // namespace motley::train
