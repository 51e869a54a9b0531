// Sums over the rows of a matrix: gradients of biases, and of the parameters of layer normalisation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace motley {
class CudaBackend;
namespace cuda {

// sums[column] (+)= the sum over all rows of x [rows, columns], in an order that depends on the shape and on
// whether x is aligned to 16 bytes. Takes the backend's scratch(). T is float, __half or __nv_bfloat16.
template <class T>
void column_sums(const char* name, CudaBackend& backend, std::int64_t rows, std::int64_t columns, const T* x,
                 float* sums, bool accumulate);

// first[column] and second[column] (+)= the sums over all rows of x [rows, 2, columns], in an order that
// depends on the number of rows alone. For sums in which each row is a sum already: it is one phase, without
// working memory, fast for up to some thousand rows.
void column_sums_of_pairs(const char* name, const CudaBackend& backend, std::int64_t rows,
                          std::int64_t columns, const float* x, float* first, float* second, bool accumulate);

}  // namespace cuda
}  // namespace motley
