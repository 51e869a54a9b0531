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
    for (std::int64_t i = begin; i < end; ++i) result[i] = output[i] > 0.0f ? gradient[i] : 0.0f;
  });
}

void CpuBackend::add(ConstView a, ConstView b, View y) {
  check_dtype("add", "a", a, DType::f32);
  check_view("add", "b", b, DType::f32, a.shape);
  check_view("add", "y", y, DType::f32, a.shape);
  const float* first = a.as<float>();
  const float* second = b.as<float>();
  float* out = y.as<float>();
  parallel_blocks(threads(), a.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) out[i] = first[i] + second[i];
  });
}

void CpuBackend::scale(float factor, View x) {
  check_dtype("scale", "x", x, DType::f32);
  float* values = x.as<float>();
  parallel_blocks(threads(), x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) values[i] *= factor;
  });
}

}  // namespace motley
