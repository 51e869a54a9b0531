#include "models/sequential.h"

#include <algorithm>
#include <utility>

namespace motley {

void Sequential::add(std::unique_ptr<Layer> layer) {
  Stage stage;
  stage.input = output_shape();
  stage.output = layer->output_shape(stage.input);
  stage.saved_bytes = layer->saved_bytes(stage.input);
  MOTLEY_CHECK(!layer->in_place() || (!layers_.empty() && stage.input == stage.output));
  layers_.push_back(std::move(layer));
  stages_.push_back(std::move(stage));
}

namespace {

std::size_t float_bytes(const Shape& shape) {
  return static_cast<std::size_t>(shape.elements()) * sizeof(float);
}

}  // namespace

void Sequential::allocate(Backend& backend, std::int64_t max_batch, bool training) {
  max_batch_ = max_batch;
  training_ = training;
  const auto n = static_cast<std::size_t>(max_batch);
  std::size_t largest = 0, largest_saved = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Stage& stage = stages_[i];
    largest = std::max(largest, float_bytes(stage.output));
    largest_saved = std::max(largest_saved, stage.saved_bytes);
    if (training && !layers_[i]->in_place()) stage.y = Buffer(backend, n * float_bytes(stage.output));
    stage.saved = Buffer(backend, n * stage.saved_bytes);
  }
  for (Buffer& buffer : scratch_) buffer = Buffer(backend, n * largest);
}

View Sequential::output_of(std::size_t index, std::int64_t n) const {
  const Shape shape = stages_[index].output.with_batch(n);
  while (layers_[index]->in_place()) --index;
  if (training_) return stages_[index].y.view(DType::f32, shape);
  // Evaluation alternates between two buffers; layers that work in place do not move.
  std::size_t moves = 0;
  for (std::size_t i = 0; i <= index; ++i) moves += layers_[i]->in_place() ? 0 : 1;
  return scratch_[moves % 2].view(DType::f32, shape);
}

View Sequential::forward(const Pass& pass, ConstView x) {
  const std::int64_t n = x.shape[0];
  MOTLEY_CHECK(n >= 1 && n <= max_batch_ && x.shape.without_batch() == input_);
  ConstView input = x;
  View output;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    output = output_of(i, n);
    const Stage& stage = stages_[i];
    const View saved = stage.saved.view(DType::u8, Shape{n * static_cast<std::int64_t>(stage.saved_bytes)});
    layers_[i]->forward(pass, input, output, saved);
    input = output;
  }
  return output;
}

void Sequential::backward(const Pass& pass, ConstView x, View dy, const GradientsDone& done) {
  MOTLEY_CHECK(training_);
  const std::int64_t n = x.shape[0];
  View gradient = dy;
  int next = 0;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const Stage& stage = stages_[i];
    const ConstView input = i == 0 ? x : ConstView(output_of(i - 1, n));
    View input_gradient;
    if (layers_[i]->in_place()) {
      input_gradient = gradient;
    } else if (i > 0) {
      input_gradient = scratch_[next].view(DType::f32, stage.input.with_batch(n));
      next = 1 - next;
    }
    const View saved = stage.saved.view(DType::u8, Shape{n * static_cast<std::int64_t>(stage.saved_bytes)});
    layers_[i]->backward(pass, input, output_of(i, n), saved, gradient, input_gradient);
    gradient = input_gradient;
    if (const std::size_t finished = layers_[i]->gradients_finished(); finished > 0 && done) done(finished);
  }
}

}  // namespace motley
