#include "models/parameter_store.h"

#include <algorithm>
#include <cmath>

#include "core/philox.h"

namespace motley {
namespace {

constexpr std::size_t alignment_elements = 16;

std::size_t padded(std::int64_t elements) {
  const auto count = static_cast<std::size_t>(elements);
  return (count + alignment_elements - 1) / alignment_elements * alignment_elements;
}

// Two independent normally distributed numbers from two uniform ones (Box and Muller, "A note on the generation
// of random normal deviates", 1958).
void normal_pair(std::uint32_t bits0, std::uint32_t bits1, float deviation, float* out) {
  constexpr double unit = 1.0 / 4294967296.0, two_pi = 6.283185307179586;
  const double radius = deviation * std::sqrt(-2.0 * std::log((bits0 + 1.0) * unit));
  const double angle = two_pi * unit * bits1;
  out[0] = static_cast<float>(radius * std::cos(angle));
  out[1] = static_cast<float>(radius * std::sin(angle));
}

// The four values of elements 4 * block on.
void draw_four(const Initializer& initializer, const Philox4& words, float* out) {
  if (initializer.kind == Initializer::Kind::normal) {
    normal_pair(words.x, words.y, initializer.bound, out);
    normal_pair(words.z, words.w, initializer.bound, out + 2);
    return;
  }
  const std::uint32_t bits[] = {words.x, words.y, words.z, words.w};
  for (int i = 0; i < 4; ++i) out[i] = (2.0f * to_unit_float(bits[i]) - 1.0f) * initializer.bound;
}

// The starting values of a parameter.
void draw(const Parameter& parameter, const RandomKey& key, std::vector<float>& out) {
  const Initializer& initializer = parameter.initializer;
  const bool ones = initializer.kind == Initializer::Kind::ones;
  out.assign(static_cast<std::size_t>(parameter.shape.elements()), ones ? 1.0f : 0.0f);
  const bool random =
      initializer.kind == Initializer::Kind::uniform || initializer.kind == Initializer::Kind::normal;
  for (std::size_t element = 0; random && element < out.size(); element += 4) {
    float four[4];
    draw_four(
        initializer,
        random_block(key, static_cast<std::uint32_t>(element >> 32), static_cast<std::uint32_t>(element) / 4),
        four);
    std::copy_n(four, std::min<std::size_t>(4, out.size() - element), &out[element]);
  }
  if (initializer.zero_row >= 0) {
    const auto row = static_cast<std::size_t>(parameter.shape.elements_from(1));
    std::fill_n(
        out.begin() + static_cast<std::ptrdiff_t>(row * static_cast<std::size_t>(initializer.zero_row)), row,
        0.0f);
  }
}

}  // namespace

Initializer Initializer::fan_in(std::int64_t fan_in) {
  return uniform(static_cast<float>(1.0 / std::sqrt(static_cast<double>(fan_in))));
}

int ParameterStore::add(const std::string& name, const Shape& shape, Initializer initializer, bool decays) {
  MOTLEY_CHECK(backend_ == nullptr);
  parameters_.push_back({name, shape, initializer, 0, -1, decays});
  return static_cast<int>(parameters_.size()) - 1;
}

int ParameterStore::add_fused(const std::vector<std::string>& names, const Shape& shape,
                              Initializer initializer, bool decays) {
  const auto first = static_cast<int>(parameters_.size());
  for (const std::string& name : names) add(name, shape, initializer, decays);
  for (auto index = first; index + 1 < static_cast<int>(parameters_.size()); ++index) {
    parameters_[static_cast<std::size_t>(index)].fused_with = index + 1;
  }
  return first;
}

int ParameterStore::add_statistic(const std::string& name, const Shape& shape, Initializer initializer) {
  MOTLEY_CHECK(backend_ == nullptr);
  statistics_.push_back({name, shape, initializer, statistics_elements_, -1, false});
  statistics_elements_ += padded(shape.elements());
  return static_cast<int>(statistics_.size()) - 1;
}

void ParameterStore::allocate(Backend& backend, bool with_gradients, DType compute) {
  MOTLEY_CHECK(backend_ == nullptr);
  backend_ = &backend;
  compute_ = compute;
  arena_elements_ = 0;
  for (std::size_t last = parameters_.size(); last > 0;) {
    // A group of fused parameters is laid out forwards, and padded as one.
    std::size_t first = last - 1;
    while (first > 0 && parameters_[first - 1].fused_with == static_cast<int>(first)) --first;
    std::int64_t elements = 0;
    for (std::size_t i = first; i < last; ++i) {
      parameters_[i].offset = arena_elements_ + static_cast<std::size_t>(elements);
      elements += parameters_[i].shape.elements();
    }
    arena_elements_ += padded(elements);
    last = first;
  }
  for (Parameter& statistic : statistics_) statistic.offset += arena_elements_;
  values_ = Buffer(backend, stored_elements() * sizeof(float));
  if (with_gradients) gradients_ = Buffer(backend, arena_elements_ * sizeof(float));
  if (compute != DType::f32) copy_ = Buffer(backend, arena_elements_ * size_of(compute));
}

void ParameterStore::initialize(std::uint64_t seed) {
  MOTLEY_CHECK(backend_ != nullptr);
  std::vector<float> host;
  const auto start = [&](const Parameter& parameter, std::size_t stream, const View& view) {
    draw(parameter, RandomKey(seed, Purpose::initialization, static_cast<std::uint32_t>(stream), 0), host);
    backend_->copy_to_device(view.data, host.data(), view.bytes());
    backend_->synchronize();  // `host` is filled again in the next round
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) start(parameters_[i], i, value(static_cast<int>(i)));
  for (std::size_t i = 0; i < statistics_.size(); ++i)
    start(statistics_[i], parameters_.size() + i, statistic(static_cast<int>(i)));
  changed();
}

void ParameterStore::refresh_copy() {
  if (compute_ == DType::f32 || !copy_is_old_) return;
  backend_->cast(values(), copy_.view(compute_, values().shape));
  copy_is_old_ = false;
}

View ParameterStore::compute_value(int index) const {
  if (compute_ == DType::f32) return value(index);
  MOTLEY_CHECK(!copy_is_old_);
  const Parameter& parameter = (*this)[index];
  return copy_.view(compute_, parameter.shape, parameter.offset * size_of(compute_));
}

View ParameterStore::statistic(int index) const {
  const Parameter& tensor = statistics_.at(static_cast<std::size_t>(index));
  return values_.view(DType::f32, tensor.shape, tensor.offset * sizeof(float));
}

View ParameterStore::statistics() const {
  return values_.view(DType::f32, Shape{static_cast<std::int64_t>(statistics_elements_)},
                      arena_elements_ * sizeof(float));
}

View ParameterStore::stored() const {
  return values_.view(DType::f32, Shape{static_cast<std::int64_t>(stored_elements())});
}

View ParameterStore::fused(const View& first, int count) const {
  Shape shape{first.shape[0] * count};
  for (int i = 1; i < first.shape.rank(); ++i) shape.append(first.shape[i]);
  return {first.data, first.dtype, shape};
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
  // Of a fused group the first member was registered first, so that the whole group is final with it.
  int last = index;
  while ((*this)[last].fused_with >= 0) last = (*this)[last].fused_with;
  const Parameter& parameter = (*this)[last];
  return padded(static_cast<std::int64_t>(parameter.offset) + parameter.shape.elements());
}

}  // namespace motley
