// The element type of an operation's activations ("T" in backend.h), chosen once per call.
#pragma once

#include "core/bfloat16.h"
#include "kernels/checks.h"

namespace motley {

// body(float{}) or body(Bf16{}), by the view's type; any other type is refused.
template <class Body>
void with_element_type(const char* operation, const char* argument, const ConstView& view, const Body& body) {
  if (view.dtype == DType::f32) {
    body(float{});
  } else if (view.dtype == DType::bf16) {
    body(Bf16{});
  } else {
    fail(ExitCode::internal, "{}: {} is {}, but float32 or bfloat16 belongs there", operation, argument,
         name_of(view.dtype));
  }
}

}  // namespace motley
