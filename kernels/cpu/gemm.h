// Matrix products on float32.
#pragma once

#include <cstdint>

#include "kernels/cpu/onednn.h"

namespace motley {

// Row-major C [m, n] = op(A) [m, k] op(B) [k, n] + beta C, op being transposition where the flag is 'T';
// all three dense. On the calling thread.
inline void small_gemm(char trans_a, char trans_b, std::int64_t m, std::int64_t n, std::int64_t k,
                       const float* a, const float* b, float beta, float* c) {
  dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, trans_a == 'N' ? k : m, b, trans_b == 'N' ? n : k, beta, c,
             n);
}

}  // namespace motley
