#include "models/layers/layers.h"

namespace motley {
namespace {

class LinearLayer final : public Layer {
 public:
  LinearLayer(ParameterStore& store, const std::string& name, const LinearSpec& spec)
      : store_(store), spec_(spec) {
    const Shape weight = spec.as_convolution ? Shape{spec.out_features, spec.in_features, 1, 1}
                                             : Shape{spec.out_features, spec.in_features};
    weight_ = store.add(name + ".weight", weight, Initializer::fan_in(spec.in_features));
    bias_ = store.add(name + ".bias", Shape{spec.out_features}, Initializer::fan_in(spec.in_features));
  }

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1 && inputs[0][-1] == spec_.in_features &&
                 inputs[0].elements() == spec_.in_features);
    return {Shape{spec_.out_features}};
  }

  DType output_type(DType compute) const override { return spec_.float_output ? DType::f32 : compute; }

  std::int64_t multiply_adds(const std::vector<Shape>& /*inputs*/) const override {
    return spec_.in_features * spec_.out_features;
  }

  // What the activation is applied to is kept, but for ReLU, whose output tells as much; and the gradient of it.
  Memory memory(const std::vector<Shape>& /*inputs*/, DType compute) const override {
    if (spec_.activation == Activation::none) return {};
    const Extent output{static_cast<std::size_t>(spec_.out_features) * size_of(compute), 0};
    return {
        .saved = keeps_preactivation() ? output : Extent{}, .backward_work = output, .work_over_dy = true};
  }
  bool backward_reads_input(std::size_t /*index*/) const override { return true; }
  bool backward_reads_output() const override { return spec_.activation == Activation::relu; }
  std::vector<Place> gradient_places(std::size_t /*input*/) const override { return {{Place::Of::input, 0}}; }
  bool can_accumulate(std::size_t /*input*/) const override { return true; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    const ConstView x{t.x[0].data, t.x[0].dtype, Shape{t.x[0].shape[0], spec_.in_features}};
    const View preactivation =
        keeps_preactivation() ? View{t.saved.data, t.y[0].dtype, t.y[0].shape} : View{};
    pass.backend.linear_forward(x, weight(), store_.value(bias_), spec_.activation, t.y[0], preactivation);
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    Backend& backend = pass.backend;
    const Shape input{t.dy[0].shape[0], spec_.in_features};
    ConstView dy = t.dy[0];
    if (spec_.activation != Activation::none) {
      const View before{t.work.data, dy.dtype, dy.shape};
      if (keeps_preactivation()) {
        backend.activation_backward(spec_.activation, {t.saved.data, dy.dtype, dy.shape}, dy, before);
      } else {
        backend.relu_backward(t.y[0], dy, before);
      }
      dy = before;
    }
    const View dweight = store_.gradient(weight_);
    backend.linear_backward_weights({t.x[0].data, t.x[0].dtype, input}, dy,
                                    dweight.reshaped(Shape{spec_.out_features, spec_.in_features}),
                                    store_.gradient(bias_), pass.accumulate);
    if (!t.dx[0].empty())
      backend.linear_backward_data(dy, weight(), t.dx[0].reshaped(input), t.accumulate[0]);
  }

  std::size_t gradients_finished() const override { return store_.finished_through(weight_); }

 private:
  bool keeps_preactivation() const {
    return spec_.activation != Activation::none && spec_.activation != Activation::relu;
  }
  View weight() const {
    return store_.compute_value(weight_).reshaped(Shape{spec_.out_features, spec_.in_features});
  }

  ParameterStore& store_;
  LinearSpec spec_;
  int weight_ = -1, bias_ = -1;
};

}  // namespace

std::unique_ptr<Layer> make_linear(ParameterStore& store, const std::string& name, const LinearSpec& spec) {
  // A float32 output with an activation would need its gradient in another type.
  MOTLEY_CHECK(!spec.float_output || spec.activation == Activation::none);
  return std::make_unique<LinearLayer>(store, name, spec);
}

}  // namespace motley
