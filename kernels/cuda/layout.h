// Transposition of many matrices: what turns channels-last into channels-first and back, and the weights of
// convolutions with them.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace motley {
class CudaBackend;
namespace cuda {

// [count, rows, columns]
struct Matrices {
  std::int64_t count = 0, rows = 0, columns = 0;

  std::int64_t elements() const { return count * rows * columns; }
};

// y[i, column, row] (+)= x[i, row, column], converted to the type of y. Of two types that differ one is
// float32, and only float32 is added to. x and y do not overlap.
void transpose(const char* name, const CudaBackend& backend, const Matrices& x_shape, DType x_type,
               const void* x, DType y_type, void* y, bool accumulate = false);

}  // namespace cuda
}  // namespace motley
