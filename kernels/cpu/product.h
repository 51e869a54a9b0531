// Matrix products on views of memory: which of oneDNN's routines computes which.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/onednn.h"

namespace motley {

// Row-major C [m, n] (+)= op(A) [m, k] op(B) [k, n] + bias [n]. A and B have the type `in`, C has `out`;
// bias is float32.
struct Product {
  bool transpose_a = false, transpose_b = false;
  std::int64_t m = 0, n = 0, k = 0;
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;
};

// Of float32 matrices, without a bias, on as many threads as OpenMP would use: one in a parallel region.
inline dnnl_status_t sgemm(const Product& p, const float* a, const float* b, float* c) {
  return dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, a,
                    p.transpose_a ? p.m : p.k, b, p.transpose_b ? p.k : p.n, p.accumulate ? 1.0f : 0.0f, c,
                    p.n);
}

}  // namespace motley
