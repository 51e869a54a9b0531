// Work on the rows of matrices: which thread does which part of which row, and rows read and written as
// float32 by the widest accesses that their addresses allow.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.cuh"

namespace motley::cuda {

constexpr std::int64_t row_threads = 256;

// Blocks for a loop over `items` pieces of each of `rows` rows, and, by blockIdx.z, over `layers` of those:
// enough to fill the device, and no more. The kernel's result must not depend on their number.
inline Grid row_grid(const CudaBackend& backend, std::int64_t rows, std::int64_t items,
                     std::int64_t layers = 1) {
  if (rows == 0 || items == 0 || layers == 0) return {dim3(0), dim3(1)};
  const std::int64_t most = 8 * std::int64_t{backend.multiprocessors()};
  // Each row is shared by as many threads as leave the fewest without work.
  const std::int64_t item_blocks = ceil_div(items, row_threads), share = ceil_div(items, item_blocks);
  const std::int64_t across =
      share < warp_size ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(share)))
                        : ceil_div(share, warp_size) * warp_size;
  const std::int64_t down = row_threads / across;
  const std::int64_t x = std::min(ceil_div(rows, down), most);
  const std::int64_t y = std::min({item_blocks, ceil_div(most, x), most_in_y});
  const std::int64_t z = std::min({layers, ceil_div(most, x * y), most_in_y});
  return {extents(x, y, z), extents(across, down)};
}

// f(row, item) for what the thread has to do in a grid of row_grid.
template <class F>
__device__ inline void for_rows(std::int64_t rows, std::int64_t items, F f) {
  const std::int64_t row_step = std::int64_t{gridDim.x} * blockDim.y;
  const std::int64_t item_step = std::int64_t{gridDim.y} * blockDim.x;
  for (std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < rows; row += row_step) {
    for (std::int64_t item = std::int64_t{blockIdx.y} * blockDim.x + threadIdx.x; item < items;
         item += item_step)
      f(row, item);
  }
}

template <class T, int width>
__device__ inline void unpack(const Pack<T, width>& pack, float (&to)[width]) {
#pragma unroll
  for (int i = 0; i < width; ++i) to[i] = to_float(pack.at[i]);
}

template <int width, class T>
__device__ inline void load_floats(const T* from, float (&to)[width]) {
  constexpr int step = access_width<T, width>;
#pragma unroll
  for (int first = 0; first < width; first += step) {
    const Pack<T, step> pack = load<step>(from + first);
#pragma unroll
    for (int i = 0; i < step; ++i) to[first + i] = to_float(pack.at[i]);
  }
}

template <int width, class T>
__device__ inline void store_floats(T* to, const float (&from)[width]) {
  constexpr int step = access_width<T, width>;
#pragma unroll
  for (int first = 0; first < width; first += step) {
    Pack<T, step> pack;
#pragma unroll
    for (int i = 0; i < step; ++i) pack.at[i] = from_float<T>(from[first + i]);
    store<step>(to + first, pack);
  }
}

}  // namespace motley::cuda
