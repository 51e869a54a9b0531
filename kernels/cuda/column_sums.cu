// Sums over the rows of a matrix in two phases: the first sums strips of rows, with the widest accesses and
// as many blocks as fill the device; the second sums the strips, which are few, with many threads for a
// column.
#include "kernels/cuda/column_sums.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.cuh"

namespace motley::cuda {
namespace {

constexpr int strip_threads = 256, last_threads = 1024;
constexpr std::int64_t most_blocks = 1024;
constexpr std::int64_t rows_of_a_thread = 8;  // at least, where there are as many

// Where sums go: those of columns from `split` on have a place of their own, and each strip has a row.
struct Sums {
  float* first;
  float* second = nullptr;
  std::int64_t split = std::numeric_limits<std::int64_t>::max();
  bool accumulate = false;
};

// Strip blockIdx.y: (+)= the sum of x over its rows. Threads along x take neighbouring columns, those along
// y, a power of two, every blockDim.y-th row.
template <class T, int width, int threads>
__global__ void __launch_bounds__(threads)
    column_sums_kernel(std::int64_t rows, std::int64_t columns, std::int64_t strip_rows, const T* x,
                       Sums sums) {
  __shared__ Shared<Pack<float, width>[threads]> parts;
  const std::int64_t column = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * width;
  const std::int64_t begin = blockIdx.y * strip_rows,
                     end = begin + strip_rows < rows ? begin + strip_rows : rows;
  Pack<float, width> sum;
#pragma unroll
  for (int i = 0; i < width; ++i) sum.at[i] = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t r = begin + threadIdx.y; r < end; r += blockDim.y) {
      const auto value = load<width>(x + r * columns + column);
#pragma unroll
      for (int i = 0; i < width; ++i) sum.at[i] += to_float(value.at[i]);
    }
  }
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  parts[at] = sum;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) {
      const Pack<float, width> other = parts[at + half * blockDim.x];
#pragma unroll
      for (int i = 0; i < width; ++i) sum.at[i] += other.at[i];
      parts[at] = sum;
    }
  }
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const std::int64_t c = column + i;
    float* const to = c < sums.split ? sums.first + blockIdx.y * columns + c : sums.second + (c - sums.split);
    *to = sums.accumulate ? *to + sum.at[i] : sum.at[i];
  }
}

// A block of `threads`: neighbouring columns for the threads along x, rows for the others.
template <int threads>
dim3 block_for(std::int64_t columns, int width) {
  const std::int64_t packs = std::min<std::int64_t>(ceil_div(columns, width), warp_size);
  const unsigned across = std::bit_ceil(static_cast<unsigned>(packs));
  return {across, threads / across};
}

template <class T, int width, int threads>
void sum_strips(const char* name, const CudaBackend& backend, std::int64_t rows, std::int64_t columns,
                std::int64_t strip_rows, const T* x, const Sums& sums) {
  const dim3 block = block_for<threads>(columns, width);
  const std::int64_t strips = rows > 0 ? ceil_div(rows, strip_rows) : 1;
  launch(name, column_sums_kernel<T, width, threads>,
         {extents(ceil_div(columns, std::int64_t{block.x} * width), strips), block}, backend.stream(), rows,
         columns, strip_rows, x, sums);
}

// All rows at once.
template <class T>
void sum_rows(const char* name, const CudaBackend& backend, std::int64_t rows, std::int64_t columns,
              const T* x, const Sums& sums) {
  sum_strips<T, 1, last_threads>(name, backend, rows, columns, rows, x, sums);
}

}  // namespace

template <class T>
void column_sums(const char* name, CudaBackend& backend, std::int64_t rows, std::int64_t columns, const T* x,
                 float* sums, bool accumulate) {
  constexpr int widest = widest_pack<T>;
  const bool whole = rows_fit<widest>(columns, x);
  const int width = whole ? widest : 1;
  const Sums result{.first = sums, .accumulate = accumulate};
  const std::int64_t few = rows_of_a_thread * block_for<last_threads>(columns, 1).y;
  if (rows <= few) return sum_rows(name, backend, rows, columns, x, result);
  const dim3 block = block_for<strip_threads>(columns, width);
  const std::int64_t across = ceil_div(columns, std::int64_t{block.x} * width);
  const std::int64_t wanted = ceil_div(rows, block.y * rows_of_a_thread);
  const std::int64_t most = std::max<std::int64_t>(most_blocks / std::max<std::int64_t>(across, 1), 1);
  const std::int64_t strip_rows = ceil_div(rows, std::min(wanted, most));
  const std::int64_t strips = ceil_div(rows, strip_rows);
  if (strips == 1) return sum_rows(name, backend, rows, columns, x, result);
  auto* const partial = backend.scratch<float>(strips * columns);
  (whole ? sum_strips<T, widest, strip_threads> : sum_strips<T, 1, strip_threads>)(name, backend, rows,
                                                                                   columns, strip_rows, x,
                                                                                   Sums{.first = partial});
  sum_rows<float>(name, backend, strips, columns, partial, result);
}

template void column_sums(const char*, CudaBackend&, std::int64_t, std::int64_t, const float*, float*, bool);
template void column_sums(const char*, CudaBackend&, std::int64_t, std::int64_t, const __half*, float*, bool);
template void column_sums(const char*, CudaBackend&, std::int64_t, std::int64_t, const __nv_bfloat16*, float*,
                          bool);

void column_sums_of_pairs(const char* name, const CudaBackend& backend, std::int64_t rows,
                          std::int64_t columns, const float* x, float* first, float* second,
                          bool accumulate) {
  sum_rows(name, backend, rows, 2 * columns, x, Sums{first, second, columns, accumulate});
}

}  // namespace motley::cuda
