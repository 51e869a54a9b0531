#include <cmath>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace motley {

void CpuBackend::relu_forward(ConstView x, View y) {
  check_dtype("relu_forward", "x", x, DType::f32);
  check_view("relu_forward", "y", y, DType::f32, x.shape);
  const float* in = x.as<float>();
  float* out = y.as<float>();
  parallel_blocks(threads(), x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = in[i] < 0.0f ? 0.0f : in[i];  // NaN stays NaN
  });
}

void CpuBackend::relu_backward(ConstView y, ConstView dy, View dx) {
  check_dtype("relu_backward", "y", y, DType::f32);
  check_view("relu_backward", "dy", dy, DType::f32, y.shape);
  check_view("relu_backward", "dx", dx, DType::f32, y.shape);
  const float* output = y.as<float>();
  const float* gradient = dy.as<float>();
  float* result = dx.as<float>();
  parallel_blocks(threads(), y.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      // Loaded on either side of the condition, or the loop is not vectorised.
      const float passed = gradient[i];
      result[i] = output[i] > 0.0f ? passed : 0.0f;
    }
  });
}

}  // namespace motley
