// What the stand-ins of cuBLAS and cuBLASLt share: matrices in memory, by columns, and their product.
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace motley::sim {

// Bytes of an element of a type that is simulated, 0 for all others.
std::size_t element_bytes(cudaDataType_t type);
// From the first element of a matrix to behind its last.
std::size_t matrix_bytes(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t ld);

// The rows of the tables of cublasGemmEx and cublasLtMatmul with CUBLAS_COMPUTE_32F and scales in float32:
// operands of one type, a result of that type or of float32.
bool gemm_types_supported(cudaDataType_t operands, cudaDataType_t result);
// Devices before compute capability 8.0 have no bfloat16 products.
bool device_multiplies(cudaDataType_t operands);

// C [m, n] = alpha op(A) [m, k] op(B) [k, n] + beta C + bias [m], by columns. C is not read where beta is 0.
struct Gemm {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  cudaDataType_t in = CUDA_R_32F, out = CUDA_R_32F;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
};
// bias: of the type `out`, or null.
void run_gemm(const Gemm& gemm, const void* a, const void* b, void* c, const void* bias);

// Violation where a scale that the library reads on the host is device memory, or null.
void check_host_scale(const char* call, const char* argument, const void* scale);

}  // namespace motley::sim
