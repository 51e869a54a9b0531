#include "blas.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "device.h"
#include "simt.h"

namespace motley::sim {
namespace {

float load(cudaDataType_t type, const void* from, std::int64_t i) {
  switch (type) {
    case CUDA_R_16F:
      return __half2float(static_cast<const __half*>(from)[i]);
    case CUDA_R_16BF:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(from)[i]);
    default:
      return static_cast<const float*>(from)[i];
  }
}

void store(cudaDataType_t type, float value, void* to, std::int64_t i) {
  switch (type) {
    case CUDA_R_16F:
      static_cast<__half*>(to)[i] = __float2half_rn(value);
      return;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(value);
      return;
    default:
      static_cast<float*>(to)[i] = value;
  }
}

// op(X) [rows, columns] by columns, widened.
std::vector<float> packed(cudaDataType_t type, const void* x, std::int64_t ld, bool transpose,
                          std::int64_t rows, std::int64_t columns) {
  std::vector<float> result(static_cast<std::size_t>(rows * columns));
  for (std::int64_t c = 0; c < columns; ++c) {
    float* const to = result.data() + c * rows;
    for (std::int64_t r = 0; r < rows; ++r) to[r] = load(type, x, transpose ? c + r * ld : r + c * ld);
  }
  return result;
}

}  // namespace

std::size_t element_bytes(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_32F:
      return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    default:
      return 0;
  }
}

std::size_t matrix_bytes(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
  if (rows == 0 || columns == 0) return 0;
  return static_cast<std::size_t>((columns - 1) * ld + rows) * element_bytes(type);
}

bool gemm_types_supported(cudaDataType_t operands, cudaDataType_t result) {
  return element_bytes(operands) != 0 && (result == operands || result == CUDA_R_32F);
}

bool device_multiplies(cudaDataType_t operands) {
  const char* const capability = std::getenv("MOTLEY_SIM_CAPABILITY");
  return operands != CUDA_R_16BF || capability == nullptr || std::atoi(capability) >= 80;
}

void run_gemm(const Gemm& g, const void* a, const void* b, void* c, const void* bias) {
  // Sums of a piece of the depth in float32, and those sums in float64: better than any GPU, and fast.
  constexpr std::int64_t depth = 256;
  const auto left = packed(g.in, a, g.lda, g.transpose_a, g.m, g.k);
  const auto right = packed(g.in, b, g.ldb, g.transpose_b, g.k, g.n);
  std::vector<float> piece(static_cast<std::size_t>(g.m));
  std::vector<double> sum(piece.size());
  for (std::int64_t j = 0; j < g.n; ++j) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t first = 0; first < g.k; first += depth) {
      std::fill(piece.begin(), piece.end(), 0.0f);
      for (std::int64_t l = first; l < std::min(first + depth, g.k); ++l) {
        const float factor = right[static_cast<std::size_t>(j * g.k + l)];
        const float* const column = left.data() + l * g.m;
        for (std::size_t i = 0; i < piece.size(); ++i) piece[i] += column[i] * factor;
      }
      for (std::size_t i = 0; i < piece.size(); ++i) sum[i] += static_cast<double>(piece[i]);
    }
    for (std::int64_t i = 0; i < g.m; ++i) {
      const std::int64_t at = i + j * g.ldc;
      float value = g.alpha * static_cast<float>(sum[static_cast<std::size_t>(i)]);
      if (g.beta != 0) value += g.beta * load(g.out, c, at);
      if (bias != nullptr) value += load(g.out, bias, i);
      store(g.out, value, c, at);
    }
  }
}

void check_host_scale(const char* call, const char* argument, const void* scale) {
  if (scale == nullptr) throw Violation(std::string(call) + ": " + argument + " is null");
  if (is_device_memory(scale)) {
    throw Violation(std::string(call) + ": " + argument +
                    " is device memory, but the pointer mode says that scales are on the host");
  }
}

}  // namespace motley::sim
