#include "models/layers/layers.h"

namespace motley {
namespace {

Shape pooled(const Pool2d& pool, const std::vector<Shape>& inputs) {
  MOTLEY_CHECK(inputs.size() == 1 && inputs[0].rank() == 3);
  const std::int64_t height = (inputs[0][0] + 2 * pool.pad_h - pool.kernel_h) / pool.stride_h + 1;
  const std::int64_t width = (inputs[0][1] + 2 * pool.pad_w - pool.kernel_w) / pool.stride_w + 1;
  return Shape{height, width, inputs[0][2]};
}

class MaxPool2dLayer final : public Layer {
 public:
  explicit MaxPool2dLayer(const Pool2d& pool) : pool_(pool) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    return {pooled(pool_, inputs)};
  }

  // The place of the maximum in its window, one byte per output.
  Memory memory(const std::vector<Shape>& inputs, DType /*compute*/) const override {
    return {.saved = {static_cast<std::size_t>(pooled(pool_, inputs).elements()), 0}};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.max_pool2d_forward(pool_, t.x[0], t.y[0], t.saved.reshaped(t.y[0].shape));
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (!t.dx[0].empty())
      pass.backend.max_pool2d_backward(pool_, t.dy[0], t.saved.reshaped(t.dy[0].shape), t.dx[0]);
  }

 private:
  Pool2d pool_;
};

class AvgPool2dLayer final : public Layer {
 public:
  explicit AvgPool2dLayer(const Pool2d& pool) : pool_(pool) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    return {pooled(pool_, inputs)};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.avg_pool2d_forward(pool_, t.x[0], t.y[0]);
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (!t.dx[0].empty()) pass.backend.avg_pool2d_backward(pool_, t.dy[0], t.dx[0]);
  }

 private:
  Pool2d pool_;
};

class GlobalAvgPoolLayer final : public Layer {
 public:
  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1 && inputs[0].rank() == 3);
    return {Shape{inputs[0][2]}};
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.avg_pool2d_forward(whole(t.x[0].shape), t.x[0], t.y[0].reshaped(pixel(t.y[0].shape)));
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    const ConstView dy{t.dy[0].data, t.dy[0].dtype, pixel(t.dy[0].shape)};
    if (!t.dx[0].empty()) pass.backend.avg_pool2d_backward(whole(t.dx[0].shape), dy, t.dx[0]);
  }

 private:
  static Pool2d whole(const Shape& image) {
    return {.kernel_h = image[1], .kernel_w = image[2], .stride_h = image[1], .stride_w = image[2]};
  }
  static Shape pixel(const Shape& features) { return Shape{features[0], 1, 1, features[1]}; }
};

}  // namespace

std::unique_ptr<Layer> make_max_pool2d(const Pool2d& pool) {
  return std::make_unique<MaxPool2dLayer>(pool);
}

std::unique_ptr<Layer> make_avg_pool2d(const Pool2d& pool) {
  return std::make_unique<AvgPool2dLayer>(pool);
}

std::unique_ptr<Layer> make_global_avg_pool() {
  return std::make_unique<GlobalAvgPoolLayer>();
}

}  // namespace motley
