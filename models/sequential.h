// A chain of layers with its activation memory.
#pragma once

#include <memory>
#include <vector>

#include "kernels/buffer.h"
#include "models/layer.h"

namespace motley {

class Sequential {
 public:
  // `input`: shape of one sample.
  explicit Sequential(const Shape& input) : input_(input) {}

  void add(std::unique_ptr<Layer> layer);
  const Shape& input_shape() const { return input_; }
  const Shape& output_shape() const { return layers_.empty() ? input_ : stages_.back().output; }

  // Of forward(), per sample (Layer::multiply_adds).
  std::int64_t multiply_adds() const;

  // Memory for micro-batches of up to max_batch samples, in place of what was reserved before, which is given
  // back first; after OutOfMemory nothing is reserved. Training keeps every activation; evaluation only two.
  void reserve(Backend& backend, std::int64_t max_batch, bool training);
  void release() { memory_ = Memory(); }
  // What reserve() takes.
  std::size_t memory_bytes(std::int64_t max_batch, bool training) const;

  // x [n, input]; returns the output [n, output], valid until the next call. x must stay until backward() is
  // done.
  View forward(const Pass& pass, ConstView x);
  // After a forward() of the same rows with memory for training. dy [n, output] is overwritten.
  void backward(const Pass& pass, ConstView x, View dy, const GradientsDone& done);

 private:
  struct Stage {
    Shape input, output;
    std::size_t saved_bytes = 0;
  };
  struct Memory {
    std::int64_t max_batch = 0;
    bool training = false;
    // One per layer; an output is empty for a layer that works in place and for evaluation.
    std::vector<Buffer> outputs, saved;
    Buffer scratch[2];  // gradients in training, activations in evaluation
  };
  Memory make_memory(BufferSource& source, std::int64_t max_batch, bool training) const;
  View output_of(std::size_t index, std::int64_t n) const;
  View saved_of(std::size_t index, std::int64_t n) const;

  Shape input_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::vector<Stage> stages_;
  Memory memory_;
};

}  // namespace motley
