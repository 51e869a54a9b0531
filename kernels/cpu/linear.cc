// The linear layer by oneDNN's sgemm, on weights as PyTorch holds them.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

constexpr std::int64_t column_block = 32;
constexpr std::int64_t finish_columns = 1024;

// float32s that a view needs as working memory: none when it holds them itself.
std::int64_t float_room(const ConstView& view) {
  return view.dtype == DType::f32 ? 0 : ceil_div(view.elements(), 16) * 16;
}

// Row-major C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, op being transposition where the flag is 'T'.
void gemm(const char* operation, int threads, char trans_a, char trans_b, std::int64_t m, std::int64_t n,
          std::int64_t k, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
          float* c, std::int64_t ldc) {
  const onednn::ThreadScope scope(threads);
  onednn::check(operation, dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc));
}

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

// What follows the product: y [n, out] = activation(preactivation), preactivation = sum of partial [pieces,
// n, out] + bias. y may be the only piece; bias and preactivation may be null.
template <class T, class Function>
void finish(int threads, std::int64_t n, std::int64_t out, std::int64_t pieces, const float* partial,
            const float* bias, const Function& function, T* y, T* preactivation) {
  parallel_blocks(threads, n, ceil_div(elementwise_block / pieces, out),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      for (std::int64_t first = 0; first < out; first += finish_columns) {
                        const auto count = static_cast<int>(std::min(finish_columns, out - first));
                        const std::int64_t at = row * out + first;
                        float sum[finish_columns];
#pragma omp simd
                        for (int i = 0; i < count; ++i) sum[i] = partial[at + i];
                        for (std::int64_t piece = 1; piece < pieces; ++piece) {
                          const float* terms = partial + piece * n * out + at;
#pragma omp simd
                          for (int i = 0; i < count; ++i) sum[i] += terms[i];
                        }
                        if (bias != nullptr) {
#pragma omp simd
                          for (int i = 0; i < count; ++i) sum[i] += bias[first + i];
                        }
                        if (preactivation != nullptr) {
#pragma omp simd
                          for (int i = 0; i < count; ++i) {
                            preactivation[at + i] = from_float<T>(sum[i]);
                            sum[i] = to_float(preactivation[at + i]);
                          }
                        }
#pragma omp simd
                        for (int i = 0; i < count; ++i) y[at + i] = from_float<T>(function.value(sum[i]));
                      }
                    }
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

// Sizes of a linear layer: x [n, in], y [n, out], weight [out, in].
struct Sizes {
  std::int64_t n, in, out;
};

Sizes sizes_of(const char* operation, const char* x_name, const ConstView& x, const char* y_name,
               const ConstView& y, const char* weight_name, const ConstView& weight) {
  check_rank(operation, x_name, x, x.dtype, 2);
  check_rank(operation, weight_name, weight, weight.dtype, 2);
  const Sizes s{x.shape[0], x.shape[1], weight.shape[0]};
  check_view(operation, weight_name, weight, weight.dtype, Shape{s.out, s.in});
  check_view(operation, y_name, y, y.dtype, Shape{s.n, s.out});
  return s;
}

// The elements of `view` in float32: its own, or converted into the next part of `memory`.
const float* as_floats(int threads, const ConstView& view, float*& memory) {
  if (view.dtype == DType::f32) return view.as<float>();
  const Bf16* from = view.as<Bf16>();
  float* to = memory;
  memory += float_room(view);
  parallel_blocks(threads, view.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) to[i] = to_float(from[i]);
  });
  return to;
}

}  // namespace

void CpuBackend::linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation, View y,
                                View preactivation) {
  constexpr auto name = "linear_forward";
  const Sizes s = sizes_of(name, "x", x, "y", y, "weight", weight);
  check_dtype(name, "weight", weight, x.dtype);
  if (y.dtype != DType::f32) check_dtype(name, "y", y, x.dtype);
  if (!bias.empty()) check_view(name, "bias", bias, DType::f32, Shape{s.out});
  if (!preactivation.empty()) check_view(name, "preactivation", preactivation, y.dtype, y.shape);
  if (y.elements() == 0) return;
  const float* b = bias.empty() ? nullptr : bias.as<float>();
  const std::int64_t pieces = depth_pieces(s.n, s.out, s.in);
  const bool own_result = pieces > 1 || y.dtype != DType::f32;
  const std::int64_t result_floats = own_result ? ceil_div(pieces * y.elements(), 16) * 16 : 0;
  auto* memory = reinterpret_cast<float*>(
      scratch(static_cast<std::size_t>(result_floats + float_room(x) + float_room(weight)) * sizeof(float)));
  float* product = own_result ? memory : y.as<float>();
  memory += result_floats;
  const float* inputs = as_floats(threads(), x, memory);
  const float* weights = as_floats(threads(), weight, memory);
  if (s.in == 0) {
    std::fill_n(product, y.elements(), 0.0f);
  } else if (pieces == 1) {
    gemm(name, threads(), 'N', 'T', s.n, s.out, s.in, inputs, s.in, weights, s.in, 0.0f, product, s.out);
  } else {
    multiply_pieces(name, threads(), s.n, s.out, s.in, pieces, inputs, weights, product);
  }
  if (!own_result && b == nullptr && activation == Activation::none && preactivation.empty()) return;
  with_element_type(name, "y", y, [&](auto type) {
    using T = decltype(type);
    T* before = preactivation.empty() ? nullptr : preactivation.as<T>();
    with_activation(name, activation, [&](auto function) {
      finish(threads(), s.n, s.out, pieces, product, b, function, y.as<T>(), before);
    });
  });
}

void CpuBackend::linear_backward_data(ConstView dy, ConstView weight, View dx, bool accumulate) {
  constexpr auto name = "linear_backward_data";
  const Sizes s = sizes_of(name, "dx", dx, "dy", dy, "weight", weight);
  check_dtype(name, "weight", weight, dy.dtype);
  check_dtype(name, "dx", dx, dy.dtype);
  if (dx.elements() == 0) return;
  if (s.out == 0) {
    if (!accumulate) fill_zero(dx);
    return;
  }
  auto* memory = reinterpret_cast<float*>(scratch(
      static_cast<std::size_t>(float_room(dx) + float_room(dy) + float_room(weight)) * sizeof(float)));
  float* product = memory;
  memory += float_room(dx);
  const float* gradients = as_floats(threads(), dy, memory);
  const float* weights = as_floats(threads(), weight, memory);
  const bool direct = dx.dtype == DType::f32;
  gemm(name, threads(), 'N', 'N', s.n, s.in, s.out, gradients, s.out, weights, s.in,
       direct && accumulate ? 1.0f : 0.0f, direct ? dx.as<float>() : product, s.in);
  if (direct) return;
  Bf16* out = dx.as<Bf16>();
  parallel_blocks(threads(), dx.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = from_float<Bf16>(accumulate ? to_float(out[i]) + product[i] : product[i]);
    }
  });
}

void CpuBackend::linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias,
                                         bool accumulate) {
  constexpr auto name = "linear_backward_weights";
  const Sizes s = sizes_of(name, "x", x, "dy", dy, "dweight", dweight);
  check_dtype(name, "dy", dy, x.dtype);
  check_dtype(name, "dweight", dweight, DType::f32);
  if (!dbias.empty()) check_view(name, "dbias", dbias, DType::f32, Shape{s.out});
  auto* memory = reinterpret_cast<float*>(
      scratch(static_cast<std::size_t>(float_room(x) + float_room(dy)) * sizeof(float)));
  if (dweight.elements() > 0) {
    if (s.n > 0) {
      const float* inputs = as_floats(threads(), x, memory);
      const float* gradients = as_floats(threads(), dy, memory);
      gemm(name, threads(), 'T', 'N', s.out, s.in, s.n, gradients, s.out, inputs, s.in,
           accumulate ? 1.0f : 0.0f, dweight.as<float>(), s.in);
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
