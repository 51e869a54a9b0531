#include "models/parameter_store.h"

#include <cmath>

#include "core/philox.h"

namespace motley {
namespace {

constexpr std::size_t alignment_elements = 16;

std::size_t padded(std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  return (count + alignment_elements - 1) / alignment_elements * alignment_elements;
}

}  // namespace

Initializer Initializer::fan_in(std::int64_t fan_in) {
  return uniform(static_cast<float>(1.0 / std::sqrt(static_cast<double>(fan_in))));
}

int ParameterStore::add(const std::string& name, const Shape& shape, Initializer initializer) {
  MOTLEY_CHECK(backend_ == nullptr);
  parameters_.push_back({name, shape, initializer, 0});
  return static_cast<int>(parameters_.size()) - 1;
}

void ParameterStore::allocate(Backend& backend, bool with_gradients) {
  MOTLEY_CHECK(backend_ == nullptr);
  backend_ = &backend;
  arena_elements_ = 0;
  for (auto parameter = parameters_.rbegin(); parameter != parameters_.rend(); ++parameter) {
    parameter->offset = arena_elements_;
    arena_elements_ += padded(parameter->shape.elements());
  }
  values_ = Buffer(backend, arena_elements_ * sizeof(float));
  if (with_gradients) gradients_ = Buffer(backend, arena_elements_ * sizeof(float));
}

void ParameterStore::initialize(std::uint64_t seed) {
  MOTLEY_CHECK(backend_ != nullptr);
  std::vector<float> host;
  for (std::size_t index = 0; index < parameters_.size(); ++index) {
    const Parameter& parameter = parameters_[index];
    const RandomKey key(seed, Purpose::initialization, static_cast<std::uint32_t>(index), 0);
    host.assign(static_cast<std::size_t>(parameter.shape.elements()), 0.0f);
    if (parameter.initializer.kind == Initializer::Kind::ones) host.assign(host.size(), 1.0f);
    if (parameter.initializer.kind == Initializer::Kind::uniform) {
      for (std::size_t element = 0; element < host.size(); ++element) {
        const auto slot = static_cast<std::uint32_t>(element >> 32);
        const float unit = to_unit_float(random_u32(key, slot, static_cast<std::uint32_t>(element)));
        host[element] = (2.0f * unit - 1.0f) * parameter.initializer.bound;
      }
    }
    const View view = value(static_cast<int>(index));
    backend_->copy_to_device(view.data, host.data(), view.bytes());
    backend_->synchronize();  // `host` is filled again in the next round
  }
}

std::int64_t ParameterStore::count() const {
  std::int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.shape.elements();
  return total;
}

View ParameterStore::slice(const Buffer& arena, int index) const {
  const Parameter& parameter = (*this)[index];
  return arena.view(DType::f32, parameter.shape, parameter.offset * sizeof(float));
}

View ParameterStore::values() const {
  return values_.view(DType::f32, Shape{static_cast<std::int64_t>(arena_elements_)});
}

View ParameterStore::gradients() const {
  return gradients_.view(DType::f32, Shape{static_cast<std::int64_t>(arena_elements_)});
}

std::size_t ParameterStore::finished_through(int index) const {
  const Parameter& parameter = (*this)[index];
  return parameter.offset + padded(parameter.shape.elements());
}

}  // namespace motley
