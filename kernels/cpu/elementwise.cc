#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::relu_forward(ConstView x, View y) {
  check_relu_forward("relu_forward", x, y);
  const float* in = x.as<float>();
  float* out = y.as<float>();
  parallel_blocks(threads(), x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = in[i] < 0.0f ? 0.0f : in[i];  // NaN stays NaN
  });
}

void CpuBackend::relu_backward(ConstView y, ConstView dy, View dx) {
  check_relu_backward("relu_backward", y, dy, dx);
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
