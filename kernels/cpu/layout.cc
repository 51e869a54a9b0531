// Channels-last to channels-first and back: a transposition of [height * width, channels] per sample.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

template <class T>
constexpr std::int64_t tile = 64 / sizeof(T);  // elements of one cache line

// A whole tile, by way of registers: the loops have constant bounds and touch no memory twice.
template <class T>
void transpose_tile(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
  constexpr int side = tile<T>;
  T lines[side][side];
  for (int r = 0; r < side; ++r) {
#pragma omp simd
    for (int c = 0; c < side; ++c) lines[r][c] = from[r * from_stride + c];
  }
  for (int c = 0; c < side; ++c) {
#pragma omp simd
    for (int r = 0; r < side; ++r) to[c * to_stride + r] = lines[r][c];
  }
}

// out [count, columns, rows] = in [count, rows, columns] with the last two dimensions exchanged.
template <class T>
void transpose(int threads, std::int64_t count, std::int64_t rows, std::int64_t columns, const T* in,
               T* out) {
  constexpr std::int64_t side = tile<T>;
  const std::int64_t strips = ceil_div(columns, side);
  parallel_for(threads, count * strips, [&](std::int64_t index) {
    const T* from = in + index / strips * rows * columns + index % strips * side;
    T* to = out + index / strips * rows * columns + index % strips * side * rows;
    const std::int64_t width = std::min(side, columns - index % strips * side);
    for (std::int64_t r = 0; r < rows; r += side) {
      const std::int64_t height = std::min(side, rows - r);
      if (width == side && height == side) {
        transpose_tile(from + r * columns, columns, to + r, rows);
      } else {
        for (std::int64_t c = 0; c < width; ++c) {
          for (std::int64_t i = 0; i < height; ++i) to[c * rows + r + i] = from[(r + i) * columns + c];
        }
      }
    }
  });
}

}  // namespace

void CpuBackend::nhwc_to_nchw(ConstView x, View y) {
  check_nhwc_to_nchw("nhwc_to_nchw", x, y);
  const Shape& s = x.shape;
  with_element_type("nhwc_to_nchw", "x", x, [&](auto type) {
    using T = decltype(type);
    transpose(threads(), s[0], s[1] * s[2], s[3], x.as<T>(), y.as<T>());
  });
}

void CpuBackend::nchw_to_nhwc(ConstView x, View y) {
  check_nchw_to_nhwc("nchw_to_nhwc", x, y);
  const Shape& s = x.shape;
  with_element_type("nchw_to_nhwc", "x", x, [&](auto type) {
    using T = decltype(type);
    transpose(threads(), s[0], s[1], s[2] * s[3], x.as<T>(), y.as<T>());
  });
}

}  // namespace motley
