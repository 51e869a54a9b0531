// Conversions between the floating-point types.
#include <cstring>

#include "core/bfloat16.h"
#include "kernels/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "core/float16.h"

namespace motley {
namespace {

template <class From, class To>
void convert_all(int threads, const void* from, void* to, std::int64_t elements) {
  const auto* in = static_cast<const From*>(from);
  auto* out = static_cast<To*>(to);
  parallel_blocks(threads, elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<To>(to_float(in[i]));
  });
}

template <class Body>
void with_float_type(const char* argument, const ConstView& view, const Body& body) {
  switch (view.dtype) {
    case DType::f32:
      return body(float{});
    case DType::bf16:
      return body(Bf16{});
    case DType::f16:
      return body(F16{});
    default:
      fail(ExitCode::internal, "cast: {} is {}, but float32, bfloat16 or float16 belongs there", argument,
           name_of(view.dtype));
  }
}

}  // namespace

void CpuBackend::cast(ConstView x, View y) {
  check_dtype("cast", "x", x, x.dtype);
  check_view("cast", "y", y, y.dtype, x.shape);
  with_float_type("x", x, [&](auto from) {
    with_float_type("y", y, [&](auto to) {
      convert_all<decltype(from), decltype(to)>(threads(), x.data, y.data, x.elements());
    });
  });
}

}  // namespace motley
