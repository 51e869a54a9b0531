// Borrowed tensors: pointer, element type, shape. Row-major and dense. A view owns nothing; whoever holds the
// memory (a Buffer, an arena, a std::vector) outlives it. The pointer may be device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"

namespace motley {

struct ConstView {
  const void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
  bool empty() const { return data == nullptr; }

  template <class T>
  const T* as() const {
    MOTLEY_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<const T*>(data);
  }
};

struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  std::int64_t elements() const { return shape.elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
  bool empty() const { return data == nullptr; }

  template <class T>
  T* as() const {
    MOTLEY_CHECK(dtype == DTypeOf<T>::value);
    return static_cast<T*>(data);
  }

  operator ConstView() const { return {data, dtype, shape}; }  // NOLINT: a View is a ConstView

  // The same memory seen with another shape of as many elements.
  View reshaped(const Shape& other) const {
    MOTLEY_CHECK(other.elements() == shape.elements());
    return {data, dtype, other};
  }
};

template <class T>
View view_of(T* data, const Shape& shape) {
  return {data, DTypeOf<T>::value, shape};
}

template <class T>
ConstView view_of(const T* data, const Shape& shape) {
  return {data, DTypeOf<T>::value, shape};
}

// All of a vector.
template <class T>
View view_of(std::vector<T>& values) {
  return {values.data(), DTypeOf<T>::value, Shape{static_cast<std::int64_t>(values.size())}};
}

}  // namespace motley
