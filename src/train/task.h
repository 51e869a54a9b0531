// A task: a data format, a network, a loss. The trainer knows nothing else of what it trains.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/row_source.h"
#include "io/sample_reader.h"
#include "models/layer.h"
#include "models/parameter_store.h"
#include "train/name_rules.h"
#include "train/options.h"

namespace motley::train {

// What the sums of a batch come to. Means over what counts for the task (samples, masked tokens).
struct Metrics {
  double loss = 0;
  double count = 0;
  std::vector<std::pair<std::string, double>> values;  // {"accuracy", 0.87}
};

// Rows [first, first + n) of a window: the samples of one micro-batch, or of this rank's share of a step.
struct Rows {
  const io::RowSource& source;
  const io::Window& window;
  std::int64_t first = 0, n = 0;
};

// Where the rows stand in the run: what counted randomness of their contents may depend on.
struct Slots {
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t first = 0;  // slot of the first row in the global batch
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

  // Told of every data set that is opened, on every rank and before allocate().
  virtual void expect(const io::RowSource& /*source*/) {}

  // What the reader of the training data does to the rows of a window, which it is told the slots of. Asked after
  // expect().
  virtual io::RowWork training_work(std::uint64_t /*seed*/) const { return {}; }

  virtual ParameterStore& parameters() = 0;
  // Device memory for the parameters, and for training their gradients. Once, before all that follows.
  virtual void allocate_parameters(Backend& backend, bool training) = 0;
  // Activations and staging for micro-batches of up to this many samples, in place of what was reserved
  // before, which is given back first: views of it are no longer valid. Parameters stay where and as they
  // are. After OutOfMemory nothing is reserved, and less may be.
  void reserve(Backend& backend, std::int64_t micro_batch, bool training);
  // The device memory that reserve() takes.
  virtual std::size_t memory_bytes(std::int64_t micro_batch, bool training) const = 0;
  // The samples of the largest micro-batch that there is memory for, and what that takes.
  std::int64_t reserved() const { return reserved_; }
  std::size_t reserved_bytes() const { return reserved_bytes_; }
  // Both: for who knows from the beginning what is needed.
  void allocate(Backend& backend, std::int64_t micro_batch, bool training);

  // A batch is judged by sums (float64, device memory) that are added up over micro-batches and ranks;
  // metrics are made of them.
  virtual std::int64_t sums() const = 0;
  virtual Metrics metrics(std::span<const double> sums) const = 0;
  // What the gradient, summed over the global batch, is divided by, once (law 2).
  virtual double divisor(std::span<const double> sums) const = 0;
  // Names that metrics() gives besides "loss", for --best-checkpoint-metric.
  virtual std::vector<std::string> metric_names() const = 0;

  // A loss of several terms, each with a count of its own, needs those of the global batch before the
  // backward pass: this many totals, which count() adds those of some rows to, and which train() is given
  // summed over the global batch.
  virtual std::int64_t totals() const { return 0; }
  virtual void count(const Rows& /*rows*/, const Slots& /*slots*/, std::span<double> /*totals*/) {}

  // Forward and backward pass; adds to sums and sets (or, with pass.accumulate, adds to) the gradients,
  // whose sum over the global batch is divided by divisor(). Without rows it only takes part in pass.statistics.
  virtual void train(const Pass& pass, const Rows& rows, std::span<const double> totals, View sums,
                     const GradientsDone& done) = 0;
  virtual void evaluate(const Pass& pass, const Rows& rows, View sums) = 0;

  // Files that a checkpoint has besides, by name: what other programs need to load the model.
  virtual std::map<std::string, std::string> model_files() const { return {}; }
  // How Hugging Face directories of this network name its parameters, where that differs from how they are
  // named here.
  virtual NameRules name_rules() const { return {}; }

 protected:
  // What reserve() asks for, which also tidies up after a failure.
  virtual void take_memory(Backend& backend, std::int64_t micro_batch, bool training) = 0;
  virtual void release_memory() = 0;

 private:
  std::int64_t reserved_ = 0;
  std::size_t reserved_bytes_ = 0;
};

// The task that the options ask for, on this rank alone; reads the files that describe its network.
// Error(usage) for a name that no task has, Error(input) for a file that is not right.
std::unique_ptr<Task> make_task(const TrainOptions& options);
std::vector<std::string> task_names();

}  // namespace motley::train
