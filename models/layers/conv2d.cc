#include "models/layers/layers.h"

namespace motley {
namespace {

class Conv2dLayer final : public Layer {
 public:
  Conv2dLayer(ParameterStore& store, const std::string& name, const ConvSpec& spec)
      : store_(store), spec_(spec) {
    const Conv2d& g = spec.geometry;
    const std::int64_t fan_in = spec.in_channels / g.groups * g.kernel_h * g.kernel_w;
    weight_ = store.add(name + ".weight",
                        Shape{spec.out_channels, spec.in_channels / g.groups, g.kernel_h, g.kernel_w},
                        Initializer::fan_in(fan_in));
    if (spec.bias) bias_ = store.add(name + ".bias", Shape{spec.out_channels}, Initializer::fan_in(fan_in));
  }

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    const Conv2d& g = spec_.geometry;
    MOTLEY_CHECK(inputs.size() == 1 && inputs[0].rank() == 3 && inputs[0][2] == spec_.in_channels);
    const std::int64_t height = (inputs[0][0] + 2 * g.pad_h - g.kernel_h) / g.stride_h + 1;
    const std::int64_t width = (inputs[0][1] + 2 * g.pad_w - g.kernel_w) / g.stride_w + 1;
    return {Shape{height, width, spec_.out_channels}};
  }

  std::int64_t multiply_adds(const std::vector<Shape>& inputs) const override {
    const Conv2d& g = spec_.geometry;
    return output_shapes(inputs)[0].elements() * (spec_.in_channels / g.groups) * g.kernel_h * g.kernel_w;
  }

  // The gradient before the ReLU.
  Memory memory(const std::vector<Shape>& inputs, DType compute) const override {
    if (spec_.activation == Activation::none) return {};
    const auto elements = static_cast<std::size_t>(output_shapes(inputs)[0].elements());
    return {.backward_work = {elements * size_of(compute), 0}, .work_over_dy = true};
  }
  bool backward_reads_input(std::size_t /*index*/) const override { return true; }
  bool backward_reads_output() const override { return spec_.activation != Activation::none; }
  std::vector<Place> gradient_places(std::size_t /*input*/) const override { return {{Place::Of::input, 0}}; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    const ConstView bias = bias_ < 0 ? ConstView{} : ConstView(store_.value(bias_));
    pass.backend.conv2d_forward(spec_.geometry, t.x[0], store_.compute_value(weight_), bias, spec_.activation,
                                t.y[0]);
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    ConstView dy = t.dy[0];
    if (spec_.activation == Activation::relu) {
      const View masked{t.work.data, dy.dtype, dy.shape};
      pass.backend.relu_backward(t.y[0], dy, masked);
      dy = masked;
    }
    const View dbias = bias_ < 0 ? View{} : store_.gradient(bias_);
    pass.backend.conv2d_backward_weights(spec_.geometry, t.x[0], dy, store_.gradient(weight_), dbias,
                                         pass.accumulate);
    // After the gradient of the weights: dx may lie where x does.
    if (!t.dx[0].empty())
      pass.backend.conv2d_backward_data(spec_.geometry, dy, store_.compute_value(weight_), t.dx[0]);
  }

  std::size_t gradients_finished() const override { return store_.finished_through(weight_); }

 private:
  ParameterStore& store_;
  ConvSpec spec_;
  int weight_ = -1, bias_ = -1;
};

}  // namespace

std::unique_ptr<Layer> make_conv2d(ParameterStore& store, const std::string& name, const ConvSpec& spec) {
  MOTLEY_CHECK(spec.activation == Activation::none || spec.activation == Activation::relu);
  return std::make_unique<Conv2dLayer>(store, name, spec);
}

}  // namespace motley
