#include "models/layers/layers.h"

namespace motley {
namespace {

// The mask is drawn again in the backward pass instead of being kept: counted randomness gives the same one.
class DropoutLayer final : public Layer {
 public:
  DropoutLayer(std::uint32_t index, double probability, bool channels)
      : index_(index), probability_(probability), channels_(channels) {
    MOTLEY_CHECK(probability >= 0 && probability < 1);
  }

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1 && (!channels_ || inputs[0].rank() == 3));
    return inputs;
  }
  bool output_over_input(std::size_t /*index*/) const override { return true; }
  std::vector<Place> gradient_places(std::size_t /*input*/) const override {
    return {{Place::Of::output_gradient, 0}};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override { apply(pass, t.x[0], t.y[0]); }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (!t.dx[0].empty()) apply(pass, t.dy[0], t.dx[0]);
  }

 private:
  void apply(const Pass& pass, ConstView from, View to) const {
    const double probability = pass.training ? probability_ : 0;
    if (probability == 0 && from.data == to.data) return;
    const DropoutMask mask{RandomKey(pass.seed, Purpose::dropout, index_, pass.step), pass.first_slot,
                           probability};
    if (channels_) {
      pass.backend.dropout_channels(mask, from, to);
    } else {
      pass.backend.dropout(mask, from, to);
    }
  }

  std::uint32_t index_;
  double probability_;
  bool channels_;
};

}  // namespace

std::unique_ptr<Layer> make_dropout(std::uint32_t index, double probability) {
  return std::make_unique<DropoutLayer>(index, probability, false);
}

std::unique_ptr<Layer> make_channel_dropout(std::uint32_t index, double probability) {
  return std::make_unique<DropoutLayer>(index, probability, true);
}

}  // namespace motley
