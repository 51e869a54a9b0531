// All parameters of a model in one contiguous float32 arena, their gradients in a second, optimizer state in
// further ones of the same layout.
//
// The arena is laid out in the order in which the backward pass finishes parameters, which is the reverse of
// the order in which the forward pass uses (and registers) them: a bucket of finished gradients is a slice.
// Each parameter starts on a 64-byte boundary; the padding between them is zero and stays zero, since its
// gradient is. Parameters that one matrix product uses together (query, key and value of attention) can be
// registered as fused: they then lie end to end and are seen as one.
//
// What is learned without a gradient (the running statistics of batch norm) lies behind the parameters, in the order in
// which it was registered, and is stored with them.
//
// A store whose networks compute in bfloat16 keeps a copy of the arena in that type; the float32 arena is the
// truth, and the copy is made again after it has changed.
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
  enum class Kind : std::uint8_t { zeros, ones, uniform, normal };
  Kind kind = Kind::zeros;
  float bound = 0;             // uniform in [-bound, bound); normal: the standard deviation
  std::int64_t zero_row = -1;  // this row starts as zeros (the embedding of padding)

  static Initializer zeros() { return {Kind::zeros, 0}; }
  static Initializer ones() { return {Kind::ones, 0}; }
  static Initializer uniform(float bound) { return {Kind::uniform, bound}; }
  static Initializer normal(float deviation) { return {Kind::normal, deviation}; }
  // PyTorch's default for convolutions and linear layers, weights and biases alike: bound 1 / sqrt(fan_in).
  static Initializer fan_in(std::int64_t fan_in);
};

struct Parameter {
  std::string name;  // as Hugging Face / torchvision name it
  Shape shape;
  Initializer initializer;
  std::size_t offset = 0;  // elements from the start of the arena, once allocated
  int fused_with = -1;     // the parameter that follows this one end to end in the arena
  bool decays = true;      // whether weight decay applies: not to biases and normalisations, by custom
};

class ParameterStore {
 public:
  // Registers a parameter in forward order and returns its index. Not after allocate().
  int add(const std::string& name, const Shape& shape, Initializer initializer, bool decays = true);
  // Registers parameters of the same shape that lie end to end in the arena, in this order; returns the index of
  // the first, the others follow it.
  int add_fused(const std::vector<std::string>& names, const Shape& shape, Initializer initializer,
                bool decays = true);
  // Registers a tensor that is learned without a gradient, and returns its index among those. Not after allocate().
  int add_statistic(const std::string& name, const Shape& shape, Initializer initializer);
  // Lays out the arenas on the backend's device. Gradients are left out for evaluation only. `compute` is the
  // type that networks compute in: float32, or bfloat16 for a copy in that type.
  void allocate(Backend& backend, bool with_gradients, DType compute = DType::f32);
  void initialize(std::uint64_t seed);
  // To be called by whoever changes values().
  void changed() { copy_is_old_ = true; }
  // Brings the copy in the compute type up to date, if there is one.
  void refresh_copy();

  const std::vector<Parameter>& all() const { return parameters_; }
  const Parameter& operator[](int index) const { return parameters_.at(static_cast<std::size_t>(index)); }
  // Learnable numbers, without padding.
  std::int64_t count() const;
  // Length of the arenas, padding included.
  std::size_t arena_elements() const { return arena_elements_; }

  const std::vector<Parameter>& all_statistics() const { return statistics_; }
  View statistic(int index) const;
  View statistics() const;  // all of them, with their padding
  // Values and statistics: what a checkpoint holds. Offsets of both are from its start.
  View stored() const;  // [stored_elements]
  std::size_t stored_elements() const { return arena_elements_ + statistics_elements_; }

  View value(int index) const { return slice(values_, index); }
  // The parameter in the type that networks compute in.
  View compute_value(int index) const;
  View gradient(int index) const { return slice(gradients_, index); }
  // One parameter's slice of another arena of this layout (optimizer state).
  View slice(const Buffer& arena, int index) const;
  // The first `count` of parameters that were added fused, as one: [count * rows, ...].
  View fused(const View& first, int count) const;
  View values() const;     // [arena_elements]
  View gradients() const;  // [arena_elements]

  // Elements at the start of the arena whose gradients are final once the backward pass has finished
  // parameter `index` and all that were registered after it.
  std::size_t finished_through(int index) const;

 private:
  std::vector<Parameter> parameters_, statistics_;
  std::size_t arena_elements_ = 0, statistics_elements_ = 0;
  Backend* backend_ = nullptr;
  Buffer values_, gradients_, copy_;
  DType compute_ = DType::f32;
  bool copy_is_old_ = true;
};

}  // namespace motley
