// The linear layer by oneDNN's sgemm, on weights as PyTorch holds them.
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
  if (s.in == 0) {
    fill_zero(y);
  } else {
    gemm(name, threads(), 'N', 'T', s.n, s.out, s.in, x.as<float>(), s.in, weight.as<float>(), s.in, 0.0f,
         y.as<float>(), s.out);
  }
  const float* b = bias.empty() ? nullptr : bias.as<float>();
  const bool relu = activation == Activation::relu;
  if (b == nullptr && !relu) return;
  float* out = y.as<float>();
  parallel_blocks(threads(), s.n, ceil_div(elementwise_block, s.out),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t row = begin; row < end; ++row) {
                      float* values = out + row * s.out;
#pragma omp simd
                      for (std::int64_t i = 0; i < s.out; ++i) {
                        const float sum = values[i] + (b == nullptr ? 0.0f : b[i]);
                        values[i] = relu && sum < 0.0f ? 0.0f : sum;
                      }
                    }
                  });
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
