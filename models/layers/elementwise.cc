#include "models/layers/layers.h"

namespace motley {
namespace {

class ActivationLayer final : public Layer {
 public:
  explicit ActivationLayer(Activation activation) : activation_(activation) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1);
    return inputs;
  }
  // ReLU's derivative is known from its output.
  bool backward_reads_input(std::size_t /*index*/) const override { return !is_relu(); }
  bool backward_reads_output() const override { return is_relu(); }
  bool output_over_input(std::size_t /*index*/) const override { return true; }
  std::vector<Place> gradient_places(std::size_t /*input*/) const override {
    return {{Place::Of::output_gradient, 0}};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    if (is_relu()) {
      pass.backend.relu_forward(t.x[0], t.y[0]);
    } else {
      pass.backend.activation_forward(activation_, t.x[0], t.y[0]);
    }
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (t.dx[0].empty()) return;
    if (is_relu()) {
      pass.backend.relu_backward(t.y[0], t.dy[0], t.dx[0]);
    } else {
      pass.backend.activation_backward(activation_, t.x[0], t.dy[0], t.dx[0]);
    }
  }

 private:
  bool is_relu() const { return activation_ == Activation::relu; }

  Activation activation_;
};

class AddLayer final : public Layer {
 public:
  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 2 && inputs[0] == inputs[1]);
    return {inputs[0]};
  }
  bool output_over_input(std::size_t /*index*/) const override { return true; }
  bool passes_gradient(std::size_t /*input*/) const override { return true; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.add(t.x[0], t.x[1], Activation::none, t.y[0]);
  }
  void backward(const Pass& /*pass*/, const BackwardTensors& /*tensors*/) override {}
};

class ScaleChannelsLayer final : public Layer {
 public:
  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 2 && inputs[0].rank() == 3 && inputs[1] == Shape{inputs[0][2]});
    return {inputs[0]};
  }
  bool backward_reads_input(std::size_t /*index*/) const override { return true; }
  bool output_over_input(std::size_t index) const override { return index == 0; }
  std::vector<Place> gradient_places(std::size_t input) const override {
    if (input == 1) return {};
    return {{Place::Of::output_gradient, 0}, {Place::Of::input, 0}};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.scale_channels_forward(t.x[0], t.x[1], t.y[0]);
  }
  void backward(const Pass& pass, const BackwardTensors& t) override {
    pass.backend.scale_channels_backward(t.x[0], t.x[1], t.dy[0], t.dx[0], t.dx[1]);
  }
};

}  // namespace

std::unique_ptr<Layer> make_activation(Activation activation) {
  return std::make_unique<ActivationLayer>(activation);
}

std::unique_ptr<Layer> make_add() {
  return std::make_unique<AddLayer>();
}

std::unique_ptr<Layer> make_scale_channels() {
  return std::make_unique<ScaleChannelsLayer>();
}

}  // namespace motley
