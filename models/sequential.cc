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
  stages_.push_back(stage);
}

std::int64_t Sequential::multiply_adds() const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) sum += layers_[i]->multiply_adds(stages_[i].input);
  return sum;
}

namespace {

std::size_t float_bytes(const Shape& shape) {
  return static_cast<std::size_t>(shape.elements()) * sizeof(float);
}

}  // namespace

Sequential::Memory Sequential::make_memory(BufferSource& source, std::int64_t max_batch,
                                           bool training) const {
  Memory memory;
  memory.max_batch = max_batch;
  memory.training = training;
  const auto n = static_cast<std::size_t>(max_batch);
  std::size_t largest = 0;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::size_t output = float_bytes(stages_[i].output);
    largest = std::max(largest, output);
    memory.outputs.push_back(source.take(training && !layers_[i]->in_place() ? n * output : 0));
    memory.saved.push_back(source.take(n * stages_[i].saved_bytes));
  }
  for (Buffer& buffer : memory.scratch) buffer = source.take(n * largest);
  return memory;
}

void Sequential::reserve(Backend& backend, std::int64_t max_batch, bool training) {
  release();
  BufferSource source(backend);
  memory_ = make_memory(source, max_batch, training);
}

std::size_t Sequential::memory_bytes(std::int64_t max_batch, bool training) const {
  BufferSource source;
  make_memory(source, max_batch, training);
  return source.bytes();
}

View Sequential::output_of(std::size_t index, std::int64_t n) const {
  const Shape shape = stages_[index].output.with_batch(n);
  while (layers_[index]->in_place()) --index;
  if (memory_.training) return memory_.outputs[index].view(DType::f32, shape);
  // Evaluation alternates between two buffers; layers that work in place do not move.
  std::size_t moves = 0;
  for (std::size_t i = 0; i <= index; ++i) moves += layers_[i]->in_place() ? 0 : 1;
  return memory_.scratch[moves % 2].view(DType::f32, shape);
}

View Sequential::saved_of(std::size_t index, std::int64_t n) const {
  return memory_.saved[index].view(DType::u8,
                                   Shape{n * static_cast<std::int64_t>(stages_[index].saved_bytes)});
}

View Sequential::forward(const Pass& pass, ConstView x) {
  const std::int64_t n = x.shape[0];
  MOTLEY_CHECK(n >= 1 && n <= memory_.max_batch && x.shape.without_batch() == input_);
  ConstView input = x;
  View output;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    output = output_of(i, n);
    layers_[i]->forward(pass, input, output, saved_of(i, n));
    input = output;
  }
  return output;
}

void Sequential::backward(const Pass& pass, ConstView x, View dy, const GradientsDone& done) {
  MOTLEY_CHECK(memory_.training);
  const std::int64_t n = x.shape[0];
  View gradient = dy;
  int next = 0;
  for (std::size_t i = layers_.size(); i-- > 0;) {
    const ConstView input = i == 0 ? x : ConstView(output_of(i - 1, n));
    View input_gradient;
    if (layers_[i]->in_place()) {
      input_gradient = gradient;
    } else if (i > 0) {
      input_gradient = memory_.scratch[next].view(DType::f32, stages_[i].input.with_batch(n));
      next = 1 - next;
    }
    layers_[i]->backward(pass, input, output_of(i, n), saved_of(i, n), gradient, input_gradient);
    gradient = input_gradient;
    if (const std::size_t finished = layers_[i]->gradients_finished(); finished > 0 && done) done(finished);
  }
}

}  // namespace motley
