#include <algorithm>

#include "models/layers/layers.h"

namespace motley {
namespace {

bool of_one_size(const std::vector<Shape>& inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [&](const Shape& shape) {
    return shape.rank() == 3 && shape[0] == inputs[0][0] && shape[1] == inputs[0][1];
  });
}

Shape with_channels(const Shape& image, std::int64_t channels) {
  return Shape{image[0], image[1], channels};
}

class ConcatLayer final : public Layer {
 public:
  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() >= 2 && of_one_size(inputs));
    std::int64_t channels = 0;
    for (const Shape& input : inputs) channels += input[2];
    return {with_channels(inputs[0], channels)};
  }
  bool can_accumulate(std::size_t /*input*/) const override { return true; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    std::int64_t first = 0;
    for (const ConstView& x : t.x) {
      pass.backend.copy_channels(x, 0, t.y[0], first, x.shape[3]);
      first += x.shape[3];
    }
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    std::int64_t first = 0;
    for (std::size_t k = 0; k < t.dx.size(); ++k) {
      MOTLEY_CHECK(!t.dx[k].empty());
      const std::int64_t channels = t.dx[k].shape[3];
      pass.backend.copy_channels(t.dy[0], first, t.dx[k], 0, channels, t.accumulate[k]);
      first += channels;
    }
  }
};

class SplitLayer final : public Layer {
 public:
  explicit SplitLayer(std::int64_t first) : first_(first) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1 && inputs[0].rank() == 3 && first_ > 0 && first_ < inputs[0][2]);
    return {with_channels(inputs[0], first_), with_channels(inputs[0], inputs[0][2] - first_)};
  }
  bool can_accumulate(std::size_t /*input*/) const override { return true; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.copy_channels(t.x[0], 0, t.y[0], 0, first_);
    pass.backend.copy_channels(t.x[0], first_, t.y[1], 0, t.y[1].shape[3]);
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (t.dx[0].empty()) return;
    pass.backend.copy_channels(t.dy[0], 0, t.dx[0], 0, first_, t.accumulate[0]);
    pass.backend.copy_channels(t.dy[1], 0, t.dx[0], first_, t.dy[1].shape[3], t.accumulate[0]);
  }

 private:
  std::int64_t first_;
};

class AddConcatLayer final : public Layer {
 public:
  explicit AddConcatLayer(std::int64_t shared) : shared_(shared) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 2 && of_one_size(inputs));
    MOTLEY_CHECK(shared_ > 0 && shared_ < std::min(inputs[0][2], inputs[1][2]));
    return {with_channels(inputs[0], inputs[0][2] + inputs[1][2] - shared_)};
  }
  bool can_accumulate(std::size_t /*input*/) const override { return true; }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    const std::int64_t first = t.x[0].shape[3], second = t.x[1].shape[3];
    pass.backend.copy_channels(t.x[0], 0, t.y[0], 0, first);
    pass.backend.copy_channels(t.x[1], 0, t.y[0], 0, shared_, true);
    pass.backend.copy_channels(t.x[1], shared_, t.y[0], first, second - shared_);
  }

  void backward(const Pass& pass, const BackwardTensors& t) override {
    MOTLEY_CHECK(!t.dx[0].empty() && !t.dx[1].empty());
    const std::int64_t first = t.dx[0].shape[3], second = t.dx[1].shape[3];
    pass.backend.copy_channels(t.dy[0], 0, t.dx[0], 0, first, t.accumulate[0]);
    pass.backend.copy_channels(t.dy[0], 0, t.dx[1], 0, shared_, t.accumulate[1]);
    pass.backend.copy_channels(t.dy[0], first, t.dx[1], shared_, second - shared_, t.accumulate[1]);
  }

 private:
  std::int64_t shared_;
};

class ChannelShuffleLayer final : public Layer {
 public:
  explicit ChannelShuffleLayer(std::int64_t groups) : groups_(groups) {}

  std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const override {
    MOTLEY_CHECK(inputs.size() == 1 && inputs[0].rank() == 3 && inputs[0][2] % groups_ == 0);
    return inputs;
  }

  void forward(const Pass& pass, const ForwardTensors& t) override {
    pass.backend.channel_shuffle(groups_, t.x[0], t.y[0]);
  }
  void backward(const Pass& pass, const BackwardTensors& t) override {
    if (!t.dx[0].empty()) pass.backend.channel_shuffle(t.dy[0].shape[3] / groups_, t.dy[0], t.dx[0]);
  }

 private:
  std::int64_t groups_;
};

}  // namespace

std::unique_ptr<Layer> make_concat() {
  return std::make_unique<ConcatLayer>();
}

std::unique_ptr<Layer> make_split(std::int64_t first) {
  return std::make_unique<SplitLayer>(first);
}

std::unique_ptr<Layer> make_add_concat(std::int64_t shared) {
  return std::make_unique<AddConcatLayer>(shared);
}

std::unique_ptr<Layer> make_channel_shuffle(std::int64_t groups) {
  return std::make_unique<ChannelShuffleLayer>(groups);
}

}  // namespace motley
