#include "models/layers/layers.h"

namespace motley {
namespace {

class FlattenLayer final : public Layer {
 public:
  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1 && inputs[0].rank() == 3);
    return {Shape{inputs[0].elements()}};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.nhwc_to_nchw(t.x[0], t.y[0].reshaped(channels_first(t.x[0].shape)));
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (t.dx[0].empty()) return;
    const ConstView dy{t.dy[0].data, t.dy[0].dtype, channels_first(t.dx[0].shape)};
    pass.backend.nchw_to_nhwc(dy, t.dx[0]);
  }

 private:
  static Shape channels_first(const Shape& nhwc) { return Shape{nhwc[0], nhwc[3], nhwc[1], nhwc[2]}; }
};

}  // namespace

std::unique_ptr<Layer> make_flatten() {
  return std::make_unique<FlattenLayer>();
}

}  // namespace motley
