#include "models/layers/layers.h"

namespace motley {
namespace {

class MaxPool2dLayer final : public Layer {
 public:
  explicit MaxPool2dLayer(const Pool2d& pool) : pool_(pool) {}

  Shape output_shape(const Shape& input) const override {
    MOTLEY_CHECK(input.rank() == 3);
    const std::int64_t height = (input[0] + 2 * pool_.pad_h - pool_.kernel_h) / pool_.stride_h + 1;
    const std::int64_t width = (input[1] + 2 * pool_.pad_w - pool_.kernel_w) / pool_.stride_w + 1;
    return Shape{height, width, input[2]};
  }

  // The place of the maximum in its window, one byte per output.
  std::size_t saved_bytes(const Shape& input) const override {
    return static_cast<std::size_t>(output_shape(input).elements());
  }

  void forward(const Pass& pass, ConstView x, View y, View saved) override {
    pass.backend.max_pool2d_forward(pool_, x, y, saved.reshaped(y.shape));
  }

  void backward(const Pass& pass, ConstView /*x*/, ConstView y, ConstView saved, View dy, View dx) override {
    if (!dx.empty()) pass.backend.max_pool2d_backward(pool_, dy, {saved.data, saved.dtype, y.shape}, dx);
  }

 private:
  Pool2d pool_;
};

}  // namespace

std::unique_ptr<Layer> make_max_pool2d(const Pool2d& pool) {
  return std::make_unique<MaxPool2dLayer>(pool);
}

}  // namespace motley
