// The linear layer by oneDNN's sgemm, on weights as PyTorch holds them.
#include <algorithm>
#include <atomic>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

constexpr std::int64_t column_block = 32;

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

// y [n, out] = activation(sum of partial [pieces, n, out] + bias). y may be the only piece.
void finish(int threads, std::int64_t n, std::int64_t out, std::int64_t pieces, const float* partial,
            const float* bias, bool relu, float* y) {
  parallel_blocks(threads, n, ceil_div(elementwise_block / pieces, out),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      float* values = y + row * out;
                      for (std::int64_t piece = 0; piece < pieces; ++piece) {
                        const float* terms = partial + (piece * n + row) * out;
#pragma omp simd
                        for (std::int64_t i = 0; i < out; ++i)
                          values[i] = piece == 0 ? terms[i] : values[i] + terms[i];
                      }
#pragma omp simd
                      for (std::int64_t i = 0; i < out; ++i) {
                        const float sum = values[i] + (bias == nullptr ? 0.0f : bias[i]);
                        values[i] = relu && sum < 0.0f ? 0.0f : sum;
                      }
                    }
                  });
}

// out [columns] (+)= sum over the rows of x [rows, columns]; rows are added in order, whatever the thread
// count.
void sum_rows(int threads, const float* x, std::int64_t rows, std::int64_t columns, float* out,
              bool accumulate) {
  parallel_blocks(threads, columns, column_block, [&](std::int64_t begin, std::int64_t end) {
    const auto count = static_cast<int>(end - begin);
    double sum[column_block] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = x + r * columns + begin;
#pragma omp simd
      for (int c = 0; c < count; ++c) sum[c] += static_cast<double>(row[c]);
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
  check_rank(operation, x_name, x, DType::f32, 2);
  check_rank(operation, weight_name, weight, DType::f32, 2);
  const Sizes s{x.shape[0], x.shape[1], weight.shape[0]};
  check_view(operation, weight_name, weight, DType::f32, Shape{s.out, s.in});
  check_view(operation, y_name, y, DType::f32, Shape{s.n, s.out});
  return s;
}

}  // namespace

void CpuBackend::linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation,
                                View y) {
  constexpr auto name = "linear_forward";
  const Sizes s = sizes_of(name, "x", x, "y", y, "weight", weight);
  if (!bias.empty()) check_view(name, "bias", bias, DType::f32, Shape{s.out});
  if (y.elements() == 0) return;
  const float* b = bias.empty() ? nullptr : bias.as<float>();
  const bool relu = activation == Activation::relu;
  float* result = y.as<float>();
  const std::int64_t pieces = depth_pieces(s.n, s.out, s.in);
  const float* partial = result;
  if (s.in == 0) {
    fill_zero(y);
  } else if (pieces == 1) {
    gemm(name, threads(), 'N', 'T', s.n, s.out, s.in, x.as<float>(), s.in, weight.as<float>(), s.in, 0.0f,
         result, s.out);
  } else {
    auto* work = reinterpret_cast<float*>(scratch(static_cast<std::size_t>(pieces) * y.bytes()));
    multiply_pieces(name, threads(), s.n, s.out, s.in, pieces, x.as<float>(), weight.as<float>(), work);
    partial = work;
  }
  if (pieces > 1 || b != nullptr || relu) finish(threads(), s.n, s.out, pieces, partial, b, relu, result);
}

void CpuBackend::linear_backward_data(ConstView dy, ConstView weight, View dx) {
  constexpr auto name = "linear_backward_data";
  const Sizes s = sizes_of(name, "dx", dx, "dy", dy, "weight", weight);
  if (dx.elements() == 0) return;
  if (s.out == 0) return fill_zero(dx);
  gemm(name, threads(), 'N', 'N', s.n, s.in, s.out, dy.as<float>(), s.out, weight.as<float>(), s.in, 0.0f,
       dx.as<float>(), s.in);
}

void CpuBackend::linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias,
                                         bool accumulate) {
  constexpr auto name = "linear_backward_weights";
  const Sizes s = sizes_of(name, "x", x, "dy", dy, "dweight", dweight);
  if (!dbias.empty()) check_view(name, "dbias", dbias, DType::f32, Shape{s.out});
  if (dweight.elements() > 0) {
    if (s.n > 0) {
      gemm(name, threads(), 'T', 'N', s.out, s.in, s.n, dy.as<float>(), s.out, x.as<float>(), s.in,
           accumulate ? 1.0f : 0.0f, dweight.as<float>(), s.in);
    } else if (!accumulate) {
      fill_zero(dweight);
    }
  }
  if (!dbias.empty()) sum_rows(threads(), dy.as<float>(), s.n, s.out, dbias.as<float>(), accumulate);
}

}  // namespace motley
