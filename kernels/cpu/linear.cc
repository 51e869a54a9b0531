// The linear layer on weights as PyTorch holds them.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/product.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t column_block = 64;
// A product of few rows and columns but great depth (the first linear layer of a CNN) keeps only one thread
// busy in oneDNN. It is cut along the depth into pieces whose number depends on its size alone.
std::int64_t depth_pieces(std::int64_t n, std::int64_t out, std::int64_t in) {
  constexpr std::int64_t piece_depth = 1024, most_pieces = 16, largest_result = 1 << 17;
  if (n * out > largest_result) return 1;
  return std::clamp<std::int64_t>(in / piece_depth, 1, most_pieces);
}

// partial [pieces, n, out]: x weight^T over one piece of the depth each. Every piece runs on one thread.
void multiply_pieces(const char* operation, int threads, std::int64_t n, std::int64_t out, std::int64_t in,
                     std::int64_t pieces, const float* x, const float* weight, float* partial) {
  const std::int64_t depth = ceil_div(in, pieces);
  std::atomic<dnnl_status_t> failure{dnnl_success};
  const onednn::ThreadScope scope(1);
  parallel_for(threads, pieces, [&](std::int64_t piece) {
    const std::int64_t begin = piece * depth;
    const dnnl_status_t status = dnnl_sgemm('N', 'T', n, out, std::min(depth, in - begin), 1.0f, x + begin,
                                            in, weight + begin, in, 0.0f, partial + piece * n * out, out);
    if (status != dnnl_success) failure = status;
  });
  onednn::check(operation, failure);
}

// y [n, out] = sum of partial [pieces, n, out] + bias, which may be null.
template <class T>
void add_pieces(int threads, std::int64_t n, std::int64_t out, std::int64_t pieces, const float* partial,
                const float* bias, T* y) {
  parallel_for(threads, n, [&](std::int64_t row) {
    for (std::int64_t first = 0; first < out; first += column_block) {
      const auto count = static_cast<int>(std::min(column_block, out - first));
      float sum[column_block] = {};
      for (std::int64_t piece = 0; piece < pieces; ++piece) {
        const float* terms = partial + (piece * n + row) * out + first;
#pragma omp simd
        for (int i = 0; i < count; ++i) sum[i] += terms[i];
      }
      T* to = y + row * out + first;
#pragma omp simd
      for (int i = 0; i < count; ++i) {
        to[i] = from_float<T>(sum[i] + (bias == nullptr ? 0.0f : bias[first + i]));
      }
    }
  });
}

// y = function(x); y may be x.
template <class T, class Function>
void activate(int threads, const Function& function, std::int64_t elements, const T* x, T* y) {
  parallel_blocks(threads, elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) y[i] = from_float<T>(function.value(to_float(x[i])));
  });
}

// out [columns] (+)= sum over the rows of x [rows, columns]; rows are added in order, whatever the thread
// count.
template <class T>
void sum_rows(int threads, const T* x, std::int64_t rows, std::int64_t columns, float* out, bool accumulate) {
  parallel_blocks(threads, columns, column_block, [&](std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<int>(end - begin);
    double sum[column_block] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = x + r * columns + begin;
#pragma omp simd
      for (int c = 0; c < count; ++c) sum[c] += static_cast<double>(to_float(row[c]));
    }
    for (int c = 0; c < count; ++c) {
      out[begin + c] = static_cast<float>(sum[c]) + (accumulate ? out[begin + c] : 0.0f);
    }
  });
}

}  // namespace

void CpuBackend::linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation, View y,
                                View preactivation) {
  constexpr auto name = "linear_forward";
  const LinearSizes s = check_linear_forward(name, x, weight, bias, y, preactivation);
  if (y.elements() == 0) return;
  const float* b = bias.empty() ? nullptr : bias.as<float>();
  const std::int64_t pieces = x.dtype == DType::f32 ? depth_pieces(s.n, s.out, s.in) : 1;
  const View before = preactivation.empty() ? y : preactivation;
  if (s.in == 0 || pieces > 1) {
    auto* partial =
        reinterpret_cast<float*>(scratch(static_cast<std::size_t>(pieces * y.elements()) * sizeof(float)));
    if (s.in == 0) {
      std::fill_n(partial, y.elements(), 0.0f);
    } else {
      multiply_pieces(name, threads(), s.n, s.out, s.in, pieces, x.as<float>(), weight.as<float>(), partial);
    }
    with_element_type(name, "y", y, [&](auto type) {
      using T = decltype(type);
      add_pieces(threads(), s.n, s.out, pieces, partial, b, before.as<T>());
    });
  } else {
    multiply(name, {false, true, s.n, s.out, s.in, x.dtype, y.dtype}, x.data, weight.data, b, before.data);
  }
  if (activation == Activation::none && preactivation.empty()) return;
  with_element_type(name, "y", y, [&](auto type) {
    using T = decltype(type);
    with_activation(name, activation, [&](auto function) {
      activate(threads(), function, y.elements(), before.as<T>(), y.as<T>());
    });
  });
}

void CpuBackend::linear_backward_data(ConstView dy, ConstView weight, View dx, bool accumulate) {
  constexpr auto name = "linear_backward_data";
  const LinearSizes s = check_linear_backward_data(name, dy, weight, dx);
  if (dx.elements() == 0) return;
  if (s.out == 0) {
    if (!accumulate) fill_zero(dx);
    return;
  }
  multiply(name, {false, false, s.n, s.in, s.out, dy.dtype, dx.dtype, accumulate}, dy.data, weight.data,
           nullptr, dx.data);
}

void CpuBackend::linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias,
                                         bool accumulate) {
  constexpr auto name = "linear_backward_weights";
  const LinearSizes s = check_linear_backward_weights(name, x, dy, dweight, dbias);
  if (dweight.elements() > 0) {
    if (s.n > 0) {
      multiply(name, {true, false, s.out, s.in, s.n, x.dtype, DType::f32, accumulate}, dy.data, x.data,
               nullptr, dweight.data);
    } else if (!accumulate) {
      fill_zero(dweight);
    }
  }
  if (dbias.empty()) return;
  with_element_type(name, "dy", dy, [&](auto type) {
    using T = decltype(type);
    sum_rows(threads(), dy.as<T>(), s.n, s.out, dbias.as<float>(), accumulate);
  });
}

}  // namespace motley
