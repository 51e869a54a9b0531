#include "models/layers/layers.h"

namespace motley {
namespace {

// As PyTorch's.
constexpr double eps = 1e-5, momentum = 0.1;

class BatchNormLayer final : public Layer {
 public:
  BatchNormLayer(ParameterStore& store, const std::string& name, const BatchNormSpec& spec)
      : store_(store), name_(name), spec_(spec) {
    const Shape shape{spec.channels};
    gamma_ = store.add(name + ".weight", shape, Initializer::ones());
    beta_ = store.add(name + ".bias", shape, Initializer::zeros());
    running_mean_ = store.add_statistic(name + ".running_mean", shape, Initializer::zeros());
    running_var_ = store.add_statistic(name + ".running_var", shape, Initializer::ones());
  }

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == (spec_.residual ? 2u : 1u) && inputs[0][-1] == spec_.channels);
    MOTLEY_CHECK(inputs.front() == inputs.back());
    return {inputs[0]};
  }

  // Kept: mean and 1 / deviation. Working memory: the sums.
  Memory memory(const std::vector<Shape>& /*inputs*/, DType /*compute*/) const override {
    const auto channels = static_cast<std::size_t>(spec_.channels);
    const Extent sums{0, 2 * channels * sizeof(double)};
    return {.saved = {0, 2 * channels * sizeof(float)}, .forward_work = sums, .backward_work = sums};
  }
  bool backward_reads_input(std::size_t index) const override { return index == 0; }
  bool backward_reads_output() const override { return reads_mask(); }
  bool output_over_input(std::size_t /*index*/) const override { return true; }
  std::vector<Place> gradient_places(std::size_t /*input*/) const override {
    return {{Place::Of::output_gradient, 0}, {Place::Of::input, 0}, {Place::Of::output, 0}};
  }
  // Without an activation the residual's gradient is dy.
  bool passes_gradient(std::size_t input) const override {
    return input == 1 && spec_.activation == Activation::none;
  }
  bool adds_up_over_ranks() const override { return true; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    const View mean = statistic(t.saved, 0), rstd = statistic(t.saved, 1);
    const bool empty = t.x[0].shape[0] == 0;
    ConstView used_mean = mean;
    if (pass.training) {
      if (empty && pass.statistics == nullptr) return;
      const View sums = sums_in(t.work);
      if (empty) {
        pass.backend.fill_zero(sums);
      } else {
        pass.backend.batch_norm_sums(t.x[0], sums);
      }
      if (pass.statistics != nullptr) pass.statistics->add_up(sums);
      const double values = count(pass, t.x[0].shape);
      if (values < 2) {
        fail(ExitCode::usage,
             "{}: batch norm needs more than one value per channel; the batch of step {} has one sample, and "
             "the "
             "image is one pixel there",
             name_, pass.step);
      }
      pass.backend.batch_norm_statistics(sums, values, eps, momentum, mean, rstd,
                                         store_.statistic(running_mean_), store_.statistic(running_var_));
    } else {
      used_mean = store_.statistic(running_mean_);
      pass.backend.batch_norm_running(store_.statistic(running_var_), eps, rstd);
    }
    if (empty) return;
    pass.backend.batch_norm_forward(spec_.activation, t.x[0], spec_.residual ? t.x[1] : ConstView{},
                                    used_mean, rstd, store_.value(gamma_), store_.value(beta_), t.y[0]);
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    const ConstView mean = statistic(t.saved, 0), rstd = statistic(t.saved, 1);
    const View sums = sums_in(t.work), dgamma = store_.gradient(gamma_), dbeta = store_.gradient(beta_);
    const bool empty = t.x[0].shape[0] == 0;
    if (empty) {
      if (pass.statistics == nullptr) return;
      pass.backend.fill_zero(sums);
    } else {
      pass.backend.batch_norm_backward_sums(spec_.activation, t.x[0], t.y[0], t.dy[0], mean, rstd,
                                            store_.value(gamma_), store_.value(beta_), sums, dgamma, dbeta,
                                            pass.accumulate);
    }
    if (pass.statistics != nullptr) pass.statistics->add_up(sums);
    if (empty) return;
    pass.backend.batch_norm_backward(spec_.activation, t.x[0], t.y[0], t.dy[0], mean, rstd,
                                     store_.value(gamma_), store_.value(beta_), sums,
                                     count(pass, t.x[0].shape), t.dx[0], spec_.residual ? t.dx[1] : View{});
  }

  std::size_t gradients_finished() const override { return store_.finished_through(gamma_); }

 private:
  // The ReLU's mask is found from x again, unless a residual was added.
  bool reads_mask() const { return spec_.residual && spec_.activation == Activation::relu; }

  View statistic(const View& saved, std::int64_t index) const {
    return view_of(static_cast<float*>(saved.data) + index * spec_.channels, Shape{spec_.channels});
  }
  View sums_in(const View& work) const {
    return view_of(static_cast<double*>(work.data), Shape{2, spec_.channels});
  }
  // Values per channel that the statistics are of.
  double count(const Pass& pass, const Shape& rows) const {
    const std::int64_t samples = pass.statistics != nullptr ? pass.batch : rows[0];
    return static_cast<double>(samples * rows.without_batch().elements() / spec_.channels);
  }

  ParameterStore& store_;
  std::string name_;
  BatchNormSpec spec_;
  int gamma_ = -1, beta_ = -1, running_mean_ = -1, running_var_ = -1;
};

}  // namespace

std::unique_ptr<Layer> make_batch_norm(ParameterStore& store, const std::string& name,
                                       const BatchNormSpec& spec) {
  MOTLEY_CHECK(spec.activation == Activation::none || spec.activation == Activation::relu ||
               (spec.activation == Activation::swish && !spec.residual));
  return std::make_unique<BatchNormLayer>(store, name, spec);
}

}  // namespace motley
