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
  virtual void step(double lr, std::int64_t step, ConstView scale) = 0;

  // The state arenas, each laid out as the parameters, under PyTorch's names ("square_avg").
  struct State {
    std::string name;
    Buffer arena;
  };
  const std::vector<State>& states() const { return states_; }

 protected:
  Optimizer(Backend& backend, ParameterStore& store, const std::vector<std::string>& state_names);
  View state(std::size_t index) const;

  Backend& backend_;
  ParameterStore& store_;

 private:
  std::vector<State> states_;
};

// The store must be allocated, with gradients.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, Backend& backend,
                                          ParameterStore& store);

}  // namespace motley::train
