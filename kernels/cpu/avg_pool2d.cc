// Average pooling, channels-last: the loops run over windows and are vectorised over channels.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"
#include "kernels/windows.h"

namespace motley {
namespace {

constexpr int channel_block = 64;  // channels whose sums are held in registers or the first-level cache

// sum[c] += row[i * stride + c] over `pixels` pixels. The sum of a row is formed by itself first: errors then
// grow with the sides of a window, not with its area.
template <class T>
void add_row(const T* row, std::int64_t pixels, std::int64_t stride, int count, float* sum) {
  float of_row[channel_block] = {};
  for (std::int64_t i = 0; i < pixels; ++i) {
    const T* pixel = row + i * stride;
#pragma omp simd
    for (int c = 0; c < count; ++c) of_row[c] += to_float(pixel[c]);
  }
#pragma omp simd
  for (int c = 0; c < count; ++c) sum[c] += of_row[c];
}

template <class T>
void store_scaled(const float* sum, float factor, int count, T* to) {
#pragma omp simd
  for (int c = 0; c < count; ++c) to[c] = from_float<T>(sum[c] * factor);
}

// Each index is one row of windows in one block of channels, so that a single global pool is divided, too.
template <class T>
void forward(int threads, const Pool2d& pool, const PoolingSizes& s, const T* in, T* out) {
  const float factor = 1.0f / static_cast<float>(pool.kernel_h * pool.kernel_w);
  const std::int64_t blocks = ceil_div(s.c, channel_block);
  parallel_for(threads, s.n * s.out_h * blocks, [&](std::int64_t index) {
    const std::int64_t row = index / blocks, c0 = index % blocks * channel_block;
    const auto count = static_cast<int>(std::min<std::int64_t>(channel_block, s.c - c0));
    const std::int64_t top = row % s.out_h * pool.stride_h - pool.pad_h;
    const T* image = in + row / s.out_h * s.h * s.w * s.c + c0;
    const Range rows = inside(top, pool.kernel_h, s.h);
    for (std::int64_t ow = 0; ow < s.out_w; ++ow) {
      const std::int64_t left = ow * pool.stride_w - pool.pad_w;
      const Range columns = inside(left, pool.kernel_w, s.w);
      float sum[channel_block] = {};
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        add_row(image + ((top + r) * s.w + left + columns.begin) * s.c, columns.end - columns.begin, s.c,
                count, sum);
      }
      store_scaled(sum, factor, count, out + (row * s.out_w + ow) * s.c + c0);
    }
  });
}

// Every input element gathers from the windows that cover it, so that no two threads write one place and the
// order of additions is fixed.
template <class T>
void backward(int threads, const Pool2d& pool, const PoolingSizes& s, const T* gradient, T* result) {
  const float factor = 1.0f / static_cast<float>(pool.kernel_h * pool.kernel_w);
  const std::int64_t blocks = ceil_div(s.c, channel_block);
  parallel_for(threads, s.n * s.h * blocks, [&](std::int64_t index) {
    const std::int64_t row = index / blocks, c0 = index % blocks * channel_block;
    const auto count = static_cast<int>(std::min<std::int64_t>(channel_block, s.c - c0));
    const Range rows = covering(row % s.h, pool.kernel_h, pool.stride_h, pool.pad_h, s.out_h);
    Range<std::int64_t> before{-1, -1};
    for (std::int64_t w = 0; w < s.w; ++w) {
      const Range columns = covering(w, pool.kernel_w, pool.stride_w, pool.pad_w, s.out_w);
      T* target = result + (row * s.w + w) * s.c + c0;
      // In the same windows as its neighbour: the global pool's whole image is.
      if (columns.begin == before.begin && columns.end == before.end) {
        std::copy_n(target - s.c, count, target);
        continue;
      }
      before = columns;
      float sum[channel_block] = {};
      for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
        add_row(gradient + ((row / s.h * s.out_h + oh) * s.out_w + columns.begin) * s.c + c0,
                columns.end - columns.begin, s.c, count, sum);
      }
      store_scaled(sum, factor, count, target);
    }
  });
}

}  // namespace

void CpuBackend::avg_pool2d_forward(const Pool2d& pool, ConstView x, View y) {
  constexpr auto name = "avg_pool2d_forward";
  const PoolingSizes s = check_avg_pool2d(name, pool, {"x", x}, {"y", y});
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    forward(threads(), pool, s, x.as<T>(), y.as<T>());
  });
}

void CpuBackend::avg_pool2d_backward(const Pool2d& pool, ConstView dy, View dx) {
  constexpr auto name = "avg_pool2d_backward";
  const PoolingSizes s = check_avg_pool2d(name, pool, {"dx", dx}, {"dy", dy});
  with_element_type(name, "dy", dy, [&](auto type) {
    using T = decltype(type);
    backward(threads(), pool, s, dy.as<T>(), dx.as<T>());
  });
}

}  // namespace motley
