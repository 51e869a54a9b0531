#include "models/layers/layers.h"

namespace motley {
namespace {

class FlattenLayer final : public Layer {
 public:
  Shape output_shape(const Shape& input) const override {
    MOTLEY_CHECK(input.rank() == 3);
    return Shape{input.elements()};
  }

  void forward(const Pass& pass, ConstView x, View y, View /*saved*/) override {
    pass.backend.nhwc_to_nchw(x, y.reshaped(channels_first(x.shape)));
  }

  void backward(const Pass& pass, ConstView x, ConstView /*y*/, ConstView /*saved*/, View dy,
                View dx) override {
    if (!dx.empty()) pass.backend.nchw_to_nhwc(dy.reshaped(channels_first(x.shape)), dx);
  }

 private:
  static Shape channels_first(const Shape& nhwc) { return Shape{nhwc[0], nhwc[3], nhwc[1], nhwc[2]}; }
};

}  // namespace

std::unique_ptr<Layer> make_flatten() {
  return std::make_unique<FlattenLayer>();
}

}  // namespace motley
