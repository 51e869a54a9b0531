// Channels-last to channels-first and back: a transposition of [height * width, channels] per sample.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t tile = 16;  // floats of one cache line

// A whole tile, by way of registers: the loops have constant bounds and touch no memory twice.
void transpose_tile(const float* from, std::int64_t from_stride, float* to, std::int64_t to_stride) {
  float lines[tile][tile];
  for (int r = 0; r < tile; ++r) {
#pragma omp simd
    for (int c = 0; c < tile; ++c) lines[r][c] = from[r * from_stride + c];
  }
  for (int c = 0; c < tile; ++c) {
#pragma omp simd
    for (int r = 0; r < tile; ++r) to[c * to_stride + r] = lines[r][c];
  }
}

// out [count, columns, rows] = in [count, rows, columns] with the last two dimensions exchanged.
void transpose(int threads, std::int64_t count, std::int64_t rows, std::int64_t columns, const float* in,
               float* out) {
  const std::int64_t strips = ceil_div(columns, tile);
  parallel_for(threads, count * strips, [&](std::int64_t index) {
    const float* from = in + index / strips * rows * columns + index % strips * tile;
    float* to = out + index / strips * rows * columns + index % strips * tile * rows;
    const std::int64_t width = std::min(tile, columns - index % strips * tile);
    for (std::int64_t r = 0; r < rows; r += tile) {
      const std::int64_t height = std::min(tile, rows - r);
      if (width == tile && height == tile) {
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
  transpose(threads(), s[0], s[1] * s[2], s[3], x.as<float>(), y.as<float>());
}

void CpuBackend::nchw_to_nhwc(ConstView x, View y) {
  check_nchw_to_nhwc("nchw_to_nhwc", x, y);
  const Shape& s = x.shape;
  transpose(threads(), s[0], s[1], s[2] * s[3], x.as<float>(), y.as<float>());
}

}  // namespace motley
