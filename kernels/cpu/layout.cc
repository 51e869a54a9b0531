// Channels-last to channels-first and back: a transposition of [height * width, channels] per sample.
#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

constexpr std::int64_t tile = 16;  // floats of one cache line

// out [count, columns, rows] = in [count, rows, columns] with the last two dimensions exchanged.
void transpose(int threads, std::int64_t count, std::int64_t rows, std::int64_t columns, const float* in,
               float* out) {
  const std::int64_t strips = ceil_div(columns, tile);
  parallel_for(threads, count * strips, [&](std::int64_t index) {
    const float* from = in + index / strips * rows * columns;
    float* to = out + index / strips * rows * columns;
    const std::int64_t c0 = index % strips * tile, c1 = std::min(columns, c0 + tile);
    for (std::int64_t r0 = 0; r0 < rows; r0 += tile) {
      const std::int64_t r1 = std::min(rows, r0 + tile);
      for (std::int64_t c = c0; c < c1; ++c) {
        for (std::int64_t r = r0; r < r1; ++r) to[c * rows + r] = from[r * columns + c];
      }
    }
  });
}

}  // namespace

void CpuBackend::nhwc_to_nchw(ConstView x, View y) {
  check_rank("nhwc_to_nchw", "x", x, DType::f32, 4);
  const Shape& s = x.shape;
  check_view("nhwc_to_nchw", "y", y, DType::f32, Shape{s[0], s[3], s[1], s[2]});
  transpose(threads(), s[0], s[1] * s[2], s[3], x.as<float>(), y.as<float>());
}

void CpuBackend::nchw_to_nhwc(ConstView x, View y) {
  check_rank("nchw_to_nhwc", "x", x, DType::f32, 4);
  const Shape& s = x.shape;
  check_view("nchw_to_nhwc", "y", y, DType::f32, Shape{s[0], s[2], s[3], s[1]});
  transpose(threads(), s[0], s[1], s[2] * s[3], x.as<float>(), y.as<float>());
}

}  // namespace motley
