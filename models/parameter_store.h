// All parameters of a model in one contiguous float32 arena, their gradients in a second, optimizer state in
// further ones of the same layout.
//
// The arena is laid out in the order in which the backward pass finishes parameters, which is the reverse of
// the order in which the forward pass uses (and registers) them: a bucket of finished gradients is a slice.
// Each parameter starts on a 64-byte boundary; the padding between them is zero and stays zero, since its
// gradient is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/view.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"

namespace motley {

// How a parameter starts. Drawn by counted randomness from (seed, index of the parameter, element): every
// rank draws the same without communicating.
struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, uniform };
  Kind kind = Kind::zeros;
  float bound = 0;  // uniform in [-bound, bound)

  static Initializer zeros() { return {Kind::zeros, 0}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer uniform(float bound) { return {Kind::uniform, bound}; }
  // PyTorch's default for convolutions and linear layers, weights and biases alike: bound 1 / sqrt(fan_in).
  static Initializer fan_in(std::int64_t fan_in);
};

struct Parameter {
  std::string name;  // as Hugging Face / torchvision name it
  Shape shape;
  Initializer initializer;
  std::size_t offset = 0;  // elements from the start of the arena, once allocated
};

class ParameterStore {
 public:
  // Registers a parameter in forward order and returns its index. Not after allocate().
  int add(const std::string& name, const Shape& shape, Initializer initializer);
  // Lays out the arenas on the backend's device. Gradients are left out for evaluation only.
  void allocate(Backend& backend, bool with_gradients);
  void initialize(std::uint64_t seed);

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](int index) const { return parameters_.at(static_cast<std::size_t>(index)); }
  // Learnable numbers, without padding.
  std::int64_t count() const;
  // Length of the arenas, padding included.
  std::size_t arena_elements() const { return arena_elements_; }

  View value(int index) const { return slice(values_, index); }
  View gradient(int index) const { return slice(gradients_, index); }
  // One parameter's slice of another arena of this layout (optimizer state).
  View slice(const Buffer& arena, int index) const;
  View values() const;     // [arena_elements]
  View gradients() const;  // [arena_elements]

  // Elements at the start of the arena whose gradients are final once the backward pass has finished
  // parameter `index` and all that were registered after it.
  std::size_t finished_through(int index) const;

 private:
  std::vector<Parameter> parameters_;
  std::size_t arena_elements_ = 0;
  Backend* backend_ = nullptr;
  Buffer values_, gradients_;
};

}  // namespace motley
