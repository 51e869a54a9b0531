// cuBLAS and cuBLASLt for a backend: products of row-major matrices.
//
// BLAS holds matrices by columns. What is here a row-major matrix [rows, columns] is there its transpose
// [columns, rows] with the same leading dimension, so that
//     C [m, n] = op(A) [m, k] op(B) [k, n]    is there    C^T [n, m] = op(B)^T [n, k] op(A)^T [k, m]:
// BLAS's first operand is B, its second A, its rows are our columns n, its columns our rows m; an operand is
// transposed there if it is transposed here; and our bias of columns is cuBLASLt's bias of rows.
//
// Sums are formed in float32 for all types, never in TF32. The same call gives the same bits in every run:
// each product has one algorithm, taken once from cuBLASLt's heuristics, that sums in one sequence or adds up
// float32 partial sums from the workspace in a step of its own (no atomics); and the workspace belongs to one
// stream, without which cuBLAS would not promise it (its manual, "Results reproducibility").
#pragma once

#include <cublasLt.h>
#include <cublas_v2.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "core/dtype.h"
#include "kernels/buffer.h"

namespace motley {
class CudaBackend;

namespace cuda {

// Dense row-major C [m, n] (+)= op(A) [m, k] op(B) [k, n]; none of the extents is 0. A and B have the type
// `in`, C has `in` or float32.
struct Product {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;

  auto operator<=>(const Product&) const = default;
};

// Many products of one shape, C = factor * op(A) op(B), whose matrices lie anywhere: the pointers to them are
// in device memory. Rows are row_a, row_b, row_c elements apart. `in` must be one that the device multiplies,
// and matrices of float16 and bfloat16 begin at multiples of 16 bytes, as cuBLAS asks for.
struct BatchedProduct {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t row_a = 0, row_b = 0, row_c = 0;
  DType in = DType::f32, out = DType::f32;
  float factor = 1;
  std::int64_t count = 0;
};

// Compute capability 8.0 came with bfloat16 products. Older devices widen them to float32, where they are
// exact, too.
constexpr bool multiplies(int capability, DType type) {
  return type != DType::bf16 || capability >= 80;
}

class MatrixProducts {
 public:
  explicit MatrixProducts(CudaBackend& backend);
  ~MatrixProducts();
  MatrixProducts(const MatrixProducts&) = delete;
  MatrixProducts& operator=(const MatrixProducts&) = delete;

  // bias: float32 [n], added to every row, or null. Only where takes_bias() said so for the same arguments.
  void multiply(const Product& p, const void* a, const void* b, void* c, const float* bias = nullptr);
  // Whether multiply() can add the bias: cuBLASLt adds a float32 bias to a float32 result only.
  bool takes_bias(const Product& p, const void* a, const void* b, const void* c, const float* bias);

  void multiply_batched(const BatchedProduct& p, const void* const* a, const void* const* b, void* const* c);

  // How much of a result that is soon read again is formed at once: a third of the device's cache, so that it
  // is still there although operands and what is made of the result go through the cache, too; enough to fill
  // the device, where its cache is small; less where memory is scarce. It never changes, since the
  // algorithms, and so the bits, may depend on how large a product is.
  std::int64_t piece_bytes() const { return piece_bytes_; }

  // Gives back the memory that products keep.
  void release_memory();

 private:
  // All that an algorithm depends on.
  struct Problem {
    Product product;
    bool bias = false;
    std::uint32_t alignment_a = 0, alignment_b = 0, alignment_c = 0;

    auto operator<=>(const Problem&) const = default;
  };
  struct Plan;

  const Plan& plan_of(const Product& p, const void* a, const void* b, const void* c, bool bias);
  std::unique_ptr<Plan> make_plan(const Problem& problem) const;
  void multiply_widened(const Product& p, const void* a, const void* b, void* c);
  void* workspace();
  cublasHandle_t batched_handle();

  CudaBackend& backend_;
  cublasLtHandle_t lt_ = nullptr;
  cublasHandle_t blas_ = nullptr;  // made when it is first needed: it takes device memory of its own
  bool blas_has_workspace_ = false;
  std::size_t workspace_bytes_;
  std::int64_t piece_bytes_;
  Buffer workspace_, widened_;
  std::map<Problem, std::unique_ptr<Plan>> plans_;
};

}  // namespace cuda
}  // namespace motley
