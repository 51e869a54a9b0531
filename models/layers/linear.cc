#include "models/layers/layers.h"

namespace motley {
namespace {

class LinearLayer final : public Layer {
 public:
  LinearLayer(ParameterStore& store, const std::string& name, std::int64_t in_features,
              std::int64_t out_features, Activation activation)
      : store_(store), in_features_(in_features), out_features_(out_features), activation_(activation) {
    weight_ = store.add(name + ".weight", Shape{out_features, in_features}, Initializer::fan_in(in_features));
    bias_ = store.add(name + ".bias", Shape{out_features}, Initializer::fan_in(in_features));
  }

  Shape output_shape(const Shape& input) const override {
    MOTLEY_CHECK(input == Shape{in_features_});
    return Shape{out_features_};
  }

  std::int64_t multiply_adds(const Shape& /*input*/) const override { return in_features_ * out_features_; }

  void forward(const Pass& pass, ConstView x, View y, View /*saved*/) override {
    pass.backend.linear_forward(x, store_.value(weight_), store_.value(bias_), activation_, y);
  }

  void backward(const Pass& pass, ConstView x, ConstView y, ConstView /*saved*/, View dy, View dx) override {
    // y may have been through an in-place dropout since: where that zeroed it, dy is zero already.
    if (activation_ == Activation::relu) pass.backend.relu_backward(y, dy, dy);
    pass.backend.linear_backward_weights(x, dy, store_.gradient(weight_), store_.gradient(bias_),
                                         pass.accumulate);
    if (!dx.empty()) pass.backend.linear_backward_data(dy, store_.value(weight_), dx);
  }

  std::size_t gradients_finished() const override { return store_.finished_through(weight_); }

 private:
  ParameterStore& store_;
  std::int64_t in_features_, out_features_;
  Activation activation_;
  int weight_ = -1, bias_ = -1;
};

}  // namespace

std::unique_ptr<Layer> make_linear(ParameterStore& store, const std::string& name, std::int64_t in_features,
                                   std::int64_t out_features, Activation activation) {
  return std::make_unique<LinearLayer>(store, name, in_features, out_features, activation);
}

}  // namespace motley
