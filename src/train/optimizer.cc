#include "train/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace motley::train {

Optimizer::Optimizer(Backend& backend, ParameterStore& store, const std::vector<std::string>& state_names)
    : backend_(backend), store_(store) {
  for (const std::string& name : state_names) {
    states_.push_back({name, Buffer(backend, store.arena_elements() * sizeof(float))});
  }
}

void Optimizer::step(double lr, std::int64_t step, ConstView scale) {
  update(lr, step, scale);
  store_.changed();
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

  void update(double lr, std::int64_t step, ConstView scale) override {
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
    adam_.beta1 = options.adam_beta1;
    adam_.beta2 = options.adam_beta2;
    adam_.eps = eps_ = options.adam_eps;
    adam_.weight_decay = options.weight_decay;
    adam_.decoupled = true;
    as_hetseq_ = options.name == "adam";
    if (as_hetseq_) {
      segments_ = {{0, store.arena_elements(), options.weight_decay}};
    } else {
      segments_ = decay_segments(store, options.weight_decay, false);
    }
  }

  void update(double lr, std::int64_t step, ConstView scale) override {
    adam_.lr = lr;
    adam_.step = step;
    if (as_hetseq_) adam_.eps = eps_ / std::sqrt(1 - std::pow(adam_.beta2, static_cast<double>(step)));
    for (const Segment& segment : segments_) {
      const auto slice = [&](const View& arena) {
        return view_of(arena.as<float>() + segment.offset, Shape{static_cast<std::int64_t>(segment.elements)});
      };
      adam_.weight_decay = segment.weight_decay;
      backend_.adam_step(adam_, slice(store_.gradients()), scale, slice(store_.values()), slice(state(0)),
                         slice(state(1)));
    }
  }

 private:
  AdamOptions adam_;
  double eps_ = 0;
  bool as_hetseq_ = false;
  std::vector<Segment> segments_;
};

class Lamb final : public Optimizer {
 public:
  Lamb(const OptimizerOptions& options, Backend& backend, ParameterStore& store)
      : Optimizer(backend, store, {"exp_avg", "exp_avg_sq"}),
        segments_(decay_segments(store, options.weight_decay, true)) {
    lamb_.beta1 = options.adam_beta1;
    lamb_.beta2 = options.adam_beta2;
    lamb_.eps = options.adam_eps;
  }

  void update(double lr, std::int64_t step, ConstView scale) override {
    lamb_.lr = lr;
    lamb_.step = step;
    backend_.lamb_step(lamb_, segments_, store_.gradients(), scale, store_.values(), state(0), state(1));
  }

 private:
  LambOptions lamb_;
  std::vector<Segment> segments_;
};

class Adadelta final : public Optimizer {
 public:
  Adadelta(const OptimizerOptions& options, Backend& backend, ParameterStore& store)
      : Optimizer(backend, store, {"square_avg", "acc_delta"}) {
    adadelta_.rho = options.adadelta_rho;
    adadelta_.eps = options.adadelta_eps;
    adadelta_.weight_decay = options.weight_decay;
  }

  void update(double lr, std::int64_t /*step*/, ConstView scale) override {
    adadelta_.lr = lr;
    backend_.adadelta_step(adadelta_, store_.gradients(), scale, store_.values(), state(0), state(1));
  }

 private:
  AdadeltaOptions adadelta_;
};

}  // namespace

std::vector<Segment> decay_segments(const ParameterStore& store, double weight_decay, bool per_tensor) {
  std::vector<Segment> segments;
  for (const Parameter& parameter : store.all()) {
    segments.push_back({parameter.offset, static_cast<std::size_t>(parameter.shape.elements()),
                        parameter.decays ? weight_decay : 0, parameter.decays});
  }
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.offset < b.offset; });
  if (per_tensor) return segments;
  std::vector<Segment> joined;
  for (const Segment& segment : segments) {
    if (joined.empty() || joined.back().weight_decay != segment.weight_decay) joined.push_back(segment);
    joined.back().elements = segment.offset + segment.elements - joined.back().offset;
  }
  return joined;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options, Backend& backend,
                                          ParameterStore& store) {
  if (options.name == "sgd") return std::make_unique<Sgd>(options, backend, store);
  if (options.name == "adam" || options.name == "adamw")
    return std::make_unique<Adam>(options, backend, store);
  if (options.name == "lamb") return std::make_unique<Lamb>(options, backend, store);
  MOTLEY_CHECK(options.name == "adadelta");
  return std::make_unique<Adadelta>(options, backend, store);
}

}  // namespace motley::train
