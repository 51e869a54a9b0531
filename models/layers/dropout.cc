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

  Shape output_shape(const Shape& input) const override { return input; }
  bool in_place() const override { return true; }

  void forward(const Pass& pass, ConstView x, View y, View /*saved*/) override {
    if (pass.training) apply(pass, x, y);
  }

  void backward(const Pass& pass, ConstView /*x*/, ConstView /*y*/, ConstView /*saved*/, View dy,
                View dx) override {
    apply(pass, dy, dx);
  }

 private:
  void apply(const Pass& pass, ConstView from, View to) const {
    if (probability_ == 0) return;
    const DropoutMask mask{RandomKey(pass.seed, Purpose::dropout, index_, pass.step), pass.first_slot,
                           probability_};
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
