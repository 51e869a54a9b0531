#include "train/optimizer.h"

#include "core/error.h"

namespace motley::train {

Optimizer::Optimizer(Backend& backend, ParameterStore& store, const std::vector<std::string>& state_names)
    : backend_(backend), store_(store) {
  for (const std::string& name : state_names) {
    states_.push_back({name, Buffer(backend, store.arena_elements() * sizeof(float))});
  }
}

View Optimizer::state(std::size_t index) const {
  return states_.at(index).arena.view(DType::f32, Shape{static_cast<std::int64_t>(store_.arena_elements())});
}

namespace {

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, Backend& backend, ParameterStore& store)
      : Optimizer(backend, store, {"momentum_buffer"}) {
    sgd_.momentum = options.momentum;
    sgd_.dampening = options.dampening;
    sgd_.weight_decay = options.weight_decay;
    sgd_.nesterov = options.nesterov;
  }

  void step(double lr, std::int64_t step, ConstView scale) override {
    sgd_.lr = lr;
    sgd_.first_step = step == 1;
    backend_.sgd_step(sgd_, store_.gradients(), scale, store_.values(), state(0));
  }

 private:
  SgdOptions sgd_;
};

class Adam final : public Optimizer {
 public:
  Adam(const OptimizerOptions& options, Backend& backend, ParameterStore& store)
      : Optimizer(backend, store, {"exp_avg", "exp_avg_sq"}) {
    adam_.beta1 = static_cast<float>(options.adam_beta1);
    adam_.beta2 = static_cast<float>(options.adam_beta2);
    adam_.eps = options.adam_eps;
    adam_.weight_decay = options.weight_decay;
    adam_.decoupled = options.name == "adamw";
  }

  void step(double lr, std::int64_t step, ConstView scale) override {
    adam_.lr = lr;
    adam_.step = step;
    backend_.adam_step(adam_, store_.gradients(), scale, store_.values(), state(0), state(1));
  }

 private:
  AdamOptions adam_;
};

class Adadelta final : public Optimizer {
 public:
  Adadelta(const OptimizerOptions& options, Backend& backend, ParameterStore& store)
      : Optimizer(backend, store, {"square_avg", "acc_delta"}) {
    adadelta_.rho = options.adadelta_rho;
    adadelta_.eps = options.adadelta_eps;
    adadelta_.weight_decay = options.weight_decay;
  }

  void step(double lr, std::int64_t /*step*/, ConstView scale) override {
    adadelta_.lr = lr;
    backend_.adadelta_step(adadelta_, store_.gradients(), scale, store_.values(), state(0), state(1));
  }

 private:
  AdadeltaOptions adadelta_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, Backend& backend,
                                          ParameterStore& store) {
  if (options.name == "sgd") return std::make_unique<Sgd>(options, backend, store);
  if (options.name == "adam" || options.name == "adamw")
    return std::make_unique<Adam>(options, backend, store);
  MOTLEY_CHECK(options.name == "adadelta");
  return std::make_unique<Adadelta>(options, backend, store);
}

}  // namespace motley::train
