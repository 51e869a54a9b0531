// A network as a graph of layers, with its activation memory. Nodes run forward in the order in which they were
// added and backward in the reverse.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/buffer.h"
#include "models/graph_schedule.h"
#include "models/layer.h"

namespace motley {

// The tensor that a node makes, or the input of the network.
struct Value {
  std::size_t index = 0;
};

class Graph {
 public:
  // `input`: shape of one sample.
  explicit Graph(const Shape& input) : shapes_{input} {}

  Value input() const { return {0}; }
  // Appends a node; returns its outputs. The last value is the output of the network; every other is the input of a
  // node.
  std::vector<Value> add(std::unique_ptr<Layer> layer, const std::vector<Value>& inputs);
  const Shape& shape(Value value) const { return shapes_.at(value.index); }

  const Shape& input_shape() const { return shapes_.front(); }
  const Shape& output_shape() const { return shapes_.back(); }
  // Of forward(), per sample (Layer::multiply_adds).
  std::int64_t multiply_adds() const;

  // Memory for micro-batches of up to max_batch samples whose activations are of type `compute`, in place of what was
  // reserved before, which is given back first; after OutOfMemory nothing is reserved. With memory for training the
  // graph can evaluate, too.
  void reserve(Backend& backend, std::int64_t max_batch, bool training, DType compute = DType::f32);
  void release() { memory_ = Memory(); }
  // What reserve() takes.
  std::size_t memory_bytes(std::int64_t max_batch, bool training, DType compute = DType::f32) const;

  // x [n, input] of type `compute`; returns the output [n, output], valid until the next call. x must stay until
  // backward() is done. n may be 0 in training: the rank then only takes part in sums over ranks.
  View forward(const Pass& pass, ConstView x);
  // After a forward() of the same rows with memory for training. dy: [n, output] of type `compute`.
  void backward(const Pass& pass, ConstView x, ConstView dy, const GradientsDone& done);

 private:
  struct Memory {
    std::int64_t max_batch = 0;
    bool training = false;
    DType compute = DType::f32;
    GraphSchedule schedule;
    MemoryPlan::Layout layout;
    Buffer buffer;
  };
  void check_pass(const Pass& pass, ConstView x) const;
  // Tensors of the plan, as the micro-batch at hand has them; x and dy stand for the caller's.
  View bytes_of(int tensor, const Extent& size, std::int64_t n) const;
  View view_of_tensor(int tensor, DType type, const Shape& shape) const;
  View output_view(std::size_t value, std::int64_t n) const;
  ConstView value_view(std::size_t value, ConstView x) const;
  ForwardTensors forward_tensors(std::size_t node, ConstView x) const;
  BackwardTensors backward_tensors(std::size_t node, ConstView x, ConstView dy) const;
  // Adds up the gradients of inputs that have other readers, too.
  void sum_gradients(const Pass& pass, std::size_t node, ConstView dy) const;

  std::vector<GraphNode> nodes_;
  std::vector<Shape> shapes_;           // of values
  std::vector<std::size_t> producers_;  // nodes, of all values but the first
  Memory memory_;
};

}  // namespace motley
