// The innermost loops of matrix products on the CPU: a few rows and columns of the result, held in registers.
// Operands are packed in blocks of 16 columns, so that they are read in order.
#pragma once

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace motley {

// Rows, and columns in blocks, of one call: their sums fill most of the registers. `half_rows` divides a block.
#ifdef __AVX512F__
constexpr int product_rows = 12, half_rows = 8, product_columns = 2;
#else
constexpr int product_rows = 6, half_rows = 4, product_columns = 1;
#endif

// out[i * lanes + j * column_stride + lane], i < rows, j < columns, = the sum over depth d of
// a [blocks][.., lanes] (element d of row i at d / lanes * a_stride + i * lanes + d % lanes) times
// b [columns][blocks * lanes][lanes] (b_stride apart).
template <int rows, int columns>
inline void multiply_rows(const float* a, std::int64_t a_stride, std::int64_t blocks, const float* b,
                          std::int64_t b_stride, float* out, std::int64_t column_stride) {
  Vec sum[rows][columns] = {};
  for (std::int64_t block = 0; block < blocks; ++block) {
    const float* left = a + block * a_stride;
    const float* right = b + block * lanes * lanes;
#pragma GCC unroll 2
    for (int d = 0; d < lanes; ++d) {
      Vec factor[columns];
#pragma GCC unroll 16
      for (int j = 0; j < columns; ++j) factor[j] = load(right + j * b_stride + d * lanes);
#pragma GCC unroll 16
      for (int i = 0; i < rows; ++i) {
        const Vec value = all_lanes(left[i * lanes + d]);
#pragma GCC unroll 16
        for (int j = 0; j < columns; ++j) sum[i][j] += value * factor[j];
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 16
    for (int j = 0; j < columns; ++j) store(out + i * lanes + j * column_stride, sum[i][j]);
}

// out [columns][rows][lanes] (column_stride apart) (+)= the sum over `depth` of a [depth][lanes] (its first `rows`) times
// b [columns][depth][lanes] (b_stride apart). What is added is formed by itself first: over many calls errors grow with the
// root of the depth.
template <int rows, int columns>
inline void multiply_over_rows(const float* a, const float* b, std::int64_t b_stride, std::int64_t depth,
                               float* out, std::int64_t column_stride, bool accumulate) {
  Vec sum[rows][columns] = {};
  for (std::int64_t d = 0; d < depth; ++d) {
    Vec factor[columns];
#pragma GCC unroll 16
    for (int j = 0; j < columns; ++j) factor[j] = load(b + j * b_stride + d * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      const Vec value = all_lanes(a[d * lanes + i]);
#pragma GCC unroll 16
      for (int j = 0; j < columns; ++j) sum[i][j] += value * factor[j];
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < columns; ++j) {
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
      float* const to = out + j * column_stride + i * lanes;
      store(to, accumulate ? load(to) + sum[i][j] : sum[i][j]);
    }
  }
}

}  // namespace motley
