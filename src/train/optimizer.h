// An optimizer over the flat parameter arena: its state, and one step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/parameter_store.h"
#include "train/options.h"

namespace motley::train {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Updates store.values() from store.gradients() * scale[0] (see Backend::gradient_scale). `step` counts
  // from 1.
  void step(double lr, std::int64_t step, ConstView scale);

  // The state arenas, each laid out as the parameters, under PyTorch's names ("square_avg").
  struct State {
    std::string name;
    Buffer arena;
  };
  const std::vector<State>& states() const { return states_; }

 protected:
  Optimizer(Backend& backend, ParameterStore& store, const std::vector<std::string>& state_names);
  View state(std::size_t index) const;
  virtual void update(double lr, std::int64_t step, ConstView scale) = 0;

  Backend& backend_;
  ParameterStore& store_;

 private:
  std::vector<State> states_;
};

// Where weight decay applies and where it does not, as slices of the arena. Neighbours with the same decay are
// one slice; padding goes with either, since it is zero and has no gradient. `per_tensor` keeps every tensor a
// slice of its own, without padding.
std::vector<Segment> decay_segments(const ParameterStore& store, double weight_decay, bool per_tensor);

// The store must be allocated, with gradients. adamw and lamb leave weight decay off the parameters that do not
// decay; sgd and adadelta add it to every gradient, as PyTorch and HetSeq do. adam is HetSeq's (and fairseq's):
// decay is taken off all weights as in AdamW, and eps is added to the root of the average before its bias is
// corrected.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, Backend& backend,
                                          ParameterStore& store);

}  // namespace motley::train
