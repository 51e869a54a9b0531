// Transposition of many matrices: what turns channels-last into channels-first and back, and the weights of
// convolutions with them.
#pragma once

#include <cstdint>

namespace motley {
class CudaBackend;
namespace cuda {

// [count, rows, columns]
struct Matrices {
  std::int64_t count = 0, rows = 0, columns = 0;

  std::int64_t elements() const { return count * rows * columns; }
};

// y[i, column, row] (+)= x[i, row, column]. x and y do not overlap.
void transpose(const char* name, const CudaBackend& backend, const Matrices& x_shape, const float* x,
               float* y, bool accumulate = false);

}  // namespace cuda
}  // namespace motley
