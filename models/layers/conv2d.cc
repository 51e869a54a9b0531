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

  Shape output_shape(const Shape& input) const override {
    const Conv2d& g = spec_.geometry;
    MOTLEY_CHECK(input.rank() == 3 && input[2] == spec_.in_channels);
    const std::int64_t height = (input[0] + 2 * g.pad_h - g.kernel_h) / g.stride_h + 1;
    const std::int64_t width = (input[1] + 2 * g.pad_w - g.kernel_w) / g.stride_w + 1;
    return Shape{height, width, spec_.out_channels};
  }

  std::int64_t multiply_adds(const Shape& input) const override {
    const Conv2d& g = spec_.geometry;
    return output_shape(input).elements() * (spec_.in_channels / g.groups) * g.kernel_h * g.kernel_w;
  }

  void forward(const Pass& pass, ConstView x, View y, View /*saved*/) override {
    const ConstView bias = bias_ < 0 ? ConstView{} : ConstView(store_.value(bias_));
    pass.backend.conv2d_forward(spec_.geometry, x, store_.value(weight_), bias, spec_.activation, y);
  }

  void backward(const Pass& pass, ConstView x, ConstView y, ConstView /*saved*/, View dy, View dx) override {
    if (spec_.activation == Activation::relu) pass.backend.relu_backward(y, dy, dy);
    const View dbias = bias_ < 0 ? View{} : store_.gradient(bias_);
    pass.backend.conv2d_backward_weights(spec_.geometry, x, dy, store_.gradient(weight_), dbias,
                                         pass.accumulate);
    if (!dx.empty()) pass.backend.conv2d_backward_data(spec_.geometry, dy, store_.value(weight_), dx);
  }

  std::size_t gradients_finished() const override { return store_.finished_through(weight_); }

 private:
  ParameterStore& store_;
  ConvSpec spec_;
  int weight_ = -1, bias_ = -1;
};

}  // namespace

std::unique_ptr<Layer> make_conv2d(ParameterStore& store, const std::string& name, const ConvSpec& spec) {
  return std::make_unique<Conv2dLayer>(store, name, spec);
}

}  // namespace motley
