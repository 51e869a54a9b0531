// Channels-last to channels-first and back: a transposition of [height * width, channels] per sample, by
// tiles that are read and written in the order of memory and turned in shared memory.
#include "kernels/cuda/layout.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace cuda {
namespace {

constexpr int tile_bits = 10, tile_elements = 1 << tile_bits;
constexpr int threads = 256, turns = tile_elements / threads;

struct Plus {
  __device__ float operator()(std::int64_t, float a, float b) const { return a + b; }
};

template <class To, class From>
__device__ inline To converted(From x) {
  if constexpr (std::is_same_v<To, From>) {
    return x;
  } else {
    return from_float<To>(to_float(x));
  }
}

// A tile has 2^row_bits rows and 2^column_bits columns, 1024 elements together: 32 of each, but few columns
// where the matrix has few, and few rows where it has. Neither are more than the threads of a block.
struct Tiles {
  int row_bits, column_bits;
  std::int64_t in_columns, count;  // tiles side by side, tiles of a matrix
};

Tiles tiles_of(std::int64_t rows, std::int64_t columns) {
  const auto bits = [](std::int64_t extent) {
    return std::clamp(static_cast<int>(std::bit_width(static_cast<std::uint64_t>(extent - 1))), 2, 5);
  };
  Tiles t{};
  t.column_bits = bits(columns) < 5 ? bits(columns) : tile_bits - bits(rows);
  t.row_bits = tile_bits - t.column_bits;
  t.in_columns = ceil_div(columns, std::int64_t{1} << t.column_bits);
  t.count = t.in_columns * ceil_div(rows, std::int64_t{1} << t.row_bits);
  return t;
}

// y[i, column, row] (+)= x[i, row, column]. Grid: tiles in x, matrices in y.
template <class X, class Y, bool accumulate>
__global__ void __launch_bounds__(threads) transpose_kernel(Tiles tiles, Matrices m, const X* x, Y* y) {
  using Between = std::conditional_t<std::is_same_v<X, Y>, X, float>;
  // Each row has one element more, so that columns lie in all banks; a tile has 256 rows at the most.
  __shared__ Shared<Between[tile_elements + 256]> tile;
  const int width = 1 << tiles.column_bits, height = 1 << tiles.row_bits;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t tile_row = blockIdx.x / tiles.in_columns;
  const std::int64_t first_row = tile_row << tiles.row_bits;
  const std::int64_t first_column = (blockIdx.x - tile_row * tiles.in_columns) << tiles.column_bits;
  // What of the tile lies in the matrix.
  const int rows_here = static_cast<int>(m.rows - first_row < height ? m.rows - first_row : height);
  const int columns_here =
      static_cast<int>(m.columns - first_column < width ? m.columns - first_column : width);
  for (std::int64_t matrix = blockIdx.y; matrix < m.count; matrix += gridDim.y) {
    {
      const int c = thread & (width - 1), r = thread >> tiles.column_bits,
                step = threads >> tiles.column_bits;
      const X* const from = x + (matrix * m.rows + first_row + r) * m.columns + first_column + c;
#pragma unroll
      for (int k = 0; k < turns; ++k) {
        if (r + k * step < rows_here && c < columns_here)
          tile[(r + k * step) * (width + 1) + c] = converted<Between>(from[k * step * m.columns]);
      }
    }
    __syncthreads();
    {
      const int r = thread & (height - 1), c = thread >> tiles.row_bits, step = threads >> tiles.row_bits;
      Y* const to = y + (matrix * m.columns + first_column + c) * m.rows + first_row + r;
#pragma unroll
      for (int k = 0; k < turns; ++k) {
        if (r >= rows_here || c + k * step >= columns_here) continue;
        const Y value = converted<Y>(tile[r * (width + 1) + c + k * step]);
        Y* const at = to + k * step * m.rows;
        if constexpr (accumulate) {
          *at += value;
        } else {
          *at = value;
        }
      }
    }
    __syncthreads();
  }
}

template <class X, class Y, bool accumulate>
void transpose_as(const char* name, const CudaBackend& backend, const Matrices& m, const X* x, Y* y) {
  if (m.rows == 1 || m.columns == 1) {  // the order of elements stays
    if constexpr (accumulate) {
      elementwise(name, backend, m.elements(), Plus{}, y, static_cast<const Y*>(y), x);
    } else {
      elementwise(name, backend, m.elements(), Same{}, y, x);
    }
    return;
  }
  const Tiles tiles = tiles_of(m.rows, m.columns);
  launch(name, transpose_kernel<X, Y, accumulate>,
         {extents(tiles.count, std::min(m.count, most_in_y)), dim3(threads)}, backend.stream(), tiles, m, x,
         y);
}

}  // namespace

void transpose(const char* name, const CudaBackend& backend, const Matrices& m, DType x_type, const void* x,
               DType y_type, void* y, bool accumulate) {
  if (m.elements() == 0) return;
  with_element_type(name, "x", x_type, [&](auto from) {
    with_element_type(name, "y", y_type, [&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      const auto* const source = static_cast<const X*>(x);
      auto* const target = static_cast<Y*>(y);
      if constexpr (std::is_same_v<Y, float>) {
        if (accumulate) return transpose_as<X, Y, true>(name, backend, m, source, target);
      }
      if constexpr (std::is_same_v<X, Y> || std::is_same_v<X, float> || std::is_same_v<Y, float>) {
        if (!accumulate) return transpose_as<X, Y, false>(name, backend, m, source, target);
      }
      fail(ExitCode::internal, "{}: no transposition of {} {} {}", name, name_of(x_type),
           accumulate ? "is added to" : "becomes", name_of(y_type));
    });
  });
}

}  // namespace cuda

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::nhwc_to_nchw(ConstView x, View y) {
  constexpr auto name = "nhwc_to_nchw";
  check_nhwc_to_nchw(name, x, y);
  const Shape& s = x.shape;
  cuda::transpose(name, *this, {s[0], s[1] * s[2], s[3]}, x.dtype, x.data, y.dtype, y.data);
}

void CudaBackend::nchw_to_nhwc(ConstView x, View y) {
  constexpr auto name = "nchw_to_nhwc";
  check_nchw_to_nhwc(name, x, y);
  const Shape& s = x.shape;
  cuda::transpose(name, *this, {s[0], s[1], s[2] * s[3]}, x.dtype, x.data, y.dtype, y.data);
}

}  // namespace motley
