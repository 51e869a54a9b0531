// Checks of the views that an operation is given. What does not fit is a bug in the caller: Error(internal)
// that names the operation, the argument, what it is and what it should be.
#pragma once

#include "core/view.h"

namespace motley {

inline void check_view(const char* operation, const char* argument, const ConstView& view, DType dtype,
                       const Shape& shape) {
  if (view.dtype != dtype || !(view.shape == shape)) {
    fail(ExitCode::internal, "{}: {} is {} {}, but {} {} belongs there", operation, argument,
         name_of(view.dtype), view.shape.to_string(), name_of(dtype), shape.to_string());
  }
  if (view.empty() && shape.elements() > 0) {
    fail(ExitCode::internal, "{}: {} {} has no memory", operation, argument, shape.to_string());
  }
}

inline void check_dtype(const char* operation, const char* argument, const ConstView& view, DType dtype) {
  check_view(operation, argument, view, dtype, view.shape);
}

inline void check_rank(const char* operation, const char* argument, const ConstView& view, DType dtype,
                       int rank) {
  check_dtype(operation, argument, view, dtype);
  if (view.shape.rank() != rank) {
    fail(ExitCode::internal, "{}: {} has the shape {}, but {} dimensions belong there", operation, argument,
         view.shape.to_string(), rank);
  }
}

// Flat arenas: any shape of that many elements.
inline void check_length(const char* operation, const char* argument, const ConstView& view, DType dtype,
                         std::int64_t elements) {
  check_dtype(operation, argument, view, dtype);
  if (view.elements() != elements) {
    fail(ExitCode::internal, "{}: {} has {} elements, but {} belong there", operation, argument,
         view.elements(), elements);
  }
}

}  // namespace motley
