// The building block of the image networks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "core/view.h"
#include "kernels/backend.h"

namespace motley {

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
};

// Told by the backward pass whenever more gradients are final: elements from the start of the gradient arena.
using GradientsDone = std::function<void(std::size_t elements)>;

class Layer {
 public:
  virtual ~Layer() = default;

  // Shapes are per sample here: [height, width, channels] or [features].
  virtual Shape output_shape(const Shape& input) const = 0;
  // Bytes per sample that forward() leaves for backward() besides x and y.
  virtual std::size_t saved_bytes(const Shape& /*input*/) const { return 0; }
  // Multiplications with additions of forward(), per sample; convolutions and products alone count.
  virtual std::int64_t multiply_adds(const Shape& /*input*/) const { return 0; }
  // The output takes the place of the input: y is x, and dx is dy.
  virtual bool in_place() const { return false; }

  // x [n, input], y [n, output], saved [n * saved_bytes] uint8.
  virtual void forward(const Pass& pass, ConstView x, View y, View saved) = 0;
  // dy is the gradient of y and may be overwritten; dx is written, and empty when nobody needs it. Parameter
  // gradients go to the parameter store.
  virtual void backward(const Pass& pass, ConstView x, ConstView y, ConstView saved, View dy, View dx) = 0;

  // Elements of the gradient arena that are final once this layer and all behind it have run backward; 0 for
  // a layer without parameters, which finishes nothing.
  virtual std::size_t gradients_finished() const { return 0; }
};

}  // namespace motley
