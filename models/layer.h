// The building block of the image networks, and what a pass through a network needs to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/view.h"
#include "kernels/backend.h"

namespace motley {

// Adds statistics up over the ranks that hold parts of a batch, in the middle of a pass.
class StatisticsSum {
 public:
  virtual ~StatisticsSum() = default;
  // sums (float64, memory of the pass's backend) = their sum over all ranks. Every rank calls it equally often and
  // in the same order, those without samples too.
  virtual void add_up(View sums) = 0;
};

// What a forward or backward pass needs to know besides its tensors. Row i of every activation is slot
// first_slot + i of the global batch of `step`: counted randomness depends on nothing else (law 3).
struct Pass {
  Backend& backend;
  bool training = false;
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t first_slot = 0;
  bool accumulate = false;  // parameter gradients add to those of the step's earlier micro-batches
  // What the loss is multiplied by before its gradient is formed; the sums that judge it are not.
  float gradient_weight = 1;
  // Batch norm in training: where its statistics are those of several ranks' rows, what adds them up, and how many
  // samples that are together. Without, they are those of the rows at hand.
  StatisticsSum* statistics = nullptr;
  std::int64_t batch = 0;
};

// Told by the backward pass whenever more gradients are final: elements from the start of the gradient arena.
using GradientsDone = std::function<void(std::size_t elements)>;

// Bytes of a tensor: of n samples n * per_sample + fixed.
struct Extent {
  std::size_t per_sample = 0, fixed = 0;

  std::size_t bytes(std::int64_t n) const { return static_cast<std::size_t>(n) * per_sample + fixed; }
};

// A tensor that the gradient of an input may be written over, when nobody reads it later.
struct Place {
  enum class Of : std::uint8_t { input, output, output_gradient };
  Of of = Of::output_gradient;
  std::size_t index = 0;
};

struct ForwardTensors {
  std::vector<ConstView> x;  // [n, shape of the input] each
  std::vector<View> y;
  View saved, work;  // uint8, as large as the layer's memory() says
};
struct BackwardTensors {
  std::vector<ConstView> x, y;  // empty where the layer does not read them
  View saved, work;
  std::vector<ConstView> dy;
  std::vector<View> dx;          // empty where nobody needs it
  std::vector<bool> accumulate;  // add to dx instead of overwriting it; only for layers that can
};

// A node of a Graph: a function of one or more tensors. Shapes are per sample: [height, width, channels] or
// [features].
class Layer {
 public:
  virtual ~Layer() = default;

  // Of inputs that the layer cannot take, Error(internal).
  virtual std::vector<Shape> output_shapes(const std::vector<Shape>& inputs) const = 0;
  // The type of its outputs in a network whose activations are of type `compute`. Gradients are of that type always.
  virtual DType output_type(DType compute) const { return compute; }
  // Multiplications with additions of forward(), per sample; convolutions and products alone count.
  virtual std::int64_t multiply_adds(const std::vector<Shape>& /*inputs*/) const { return 0; }

  struct Memory {
    Extent saved = {};  // what forward() leaves for backward() besides x and y
    Extent forward_work = {}, backward_work = {};
    bool work_over_dy = false;  // backward_work may be where the gradient of the first output lies
  };
  virtual Memory memory(const std::vector<Shape>& /*inputs*/, DType /*compute*/) const { return {}; }
  virtual bool backward_reads_input(std::size_t /*index*/) const { return false; }
  virtual bool backward_reads_output() const { return false; }
  // The first output may be written over this input.
  virtual bool output_over_input(std::size_t /*index*/) const { return false; }
  virtual std::vector<Place> gradient_places(std::size_t /*input*/) const { return {}; }
  // The gradient of this input is that of the first output, unchanged: backward() has nothing to write.
  virtual bool passes_gradient(std::size_t /*input*/) const { return false; }
  // backward() can add the gradient of this input to what is there.
  virtual bool can_accumulate(std::size_t /*input*/) const { return false; }

  virtual void forward(const Pass& pass, const ForwardTensors& tensors) = 0;
  // Parameter gradients go to the parameter store.
  virtual void backward(const Pass& pass, const BackwardTensors& tensors) = 0;
  // Whether the layer adds up over ranks: its passes then take place without samples too (n = 0).
  virtual bool adds_up_over_ranks() const { return false; }

  // Elements of the gradient arena that are final once this layer and all behind it have run backward; 0 for
  // a layer without parameters, which finishes nothing.
  virtual std::size_t gradients_finished() const { return 0; }
};

}  // namespace motley
