// Maximum pooling, channels-last: the loops run over windows and are vectorised over channels.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"
#include "kernels/windows.h"

namespace motley {
namespace {

constexpr int channel_block =
    64;  // channels whose running maximum is held in registers or the first-level cache

template <class T>
void forward(int threads, const Pool2d& pool, const PoolingSizes& s, const T* in, T* out,
             std::uint8_t* place) {
  parallel_for(threads, s.n * s.out_h, [&](std::int64_t row) {
    const std::int64_t top = row % s.out_h * pool.stride_h - pool.pad_h;
    const T* image = in + row / s.out_h * s.h * s.w * s.c;
    const Range rows = inside(top, pool.kernel_h, s.h);
    for (std::int64_t ow = 0; ow < s.out_w; ++ow) {
      const std::int64_t left = ow * pool.stride_w - pool.pad_w;
      const Range columns = inside(left, pool.kernel_w, s.w);
      const std::int64_t at = (row * s.out_w + ow) * s.c;
      for (std::int64_t c0 = 0; c0 < s.c; c0 += channel_block) {
        const auto count = static_cast<int>(std::min<std::int64_t>(channel_block, s.c - c0));
        float best[channel_block];
        std::int32_t index[channel_block];
        std::fill_n(best, count, -std::numeric_limits<float>::infinity());
        std::fill_n(index, count, static_cast<std::int32_t>(rows.begin * pool.kernel_w + columns.begin));
        for (std::int64_t r = rows.begin; r < rows.end; ++r) {
          for (std::int64_t k = columns.begin; k < columns.end; ++k) {
            const T* pixel = image + ((top + r) * s.w + left + k) * s.c + c0;
            const auto here = static_cast<std::int32_t>(r * pool.kernel_w + k);
#pragma omp simd
            for (int c = 0; c < count; ++c) {
              // A NaN wins over everything, a later one over an earlier one, as in PyTorch.
              const float value = to_float(pixel[c]), highest = best[c];
              const std::int32_t place_of_highest = index[c];
              const bool wins = (value > highest) | (value != value);
              best[c] = wins ? value : highest;
              index[c] = wins ? here : place_of_highest;
            }
          }
        }
        T* maximum = out + at + c0;
        std::uint8_t* place_of_maximum = place + at + c0;
#pragma omp simd
        for (int c = 0; c < count; ++c) {
          maximum[c] = from_float<T>(best[c]);
          place_of_maximum[c] = static_cast<std::uint8_t>(index[c]);
        }
      }
    }
  });
}

// Every input element gathers from the windows that cover it, so that no two threads write one place and the
// order of additions is fixed.
template <class T>
void backward(int threads, const Pool2d& pool, const PoolingSizes& s, const T* gradient,
              const std::uint8_t* place, T* result) {
  parallel_for(threads, s.n * s.h, [&](std::int64_t row) {
    const std::int64_t sample = row / s.h, h = row % s.h;
    const Range rows = covering(h, pool.kernel_h, pool.stride_h, pool.pad_h, s.out_h);
    for (std::int64_t w = 0; w < s.w; ++w) {
      const Range columns = covering(w, pool.kernel_w, pool.stride_w, pool.pad_w, s.out_w);
      for (std::int64_t c0 = 0; c0 < s.c; c0 += channel_block) {
        const auto count = static_cast<int>(std::min<std::int64_t>(channel_block, s.c - c0));
        float sum[channel_block] = {};
        for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
          for (std::int64_t ow = columns.begin; ow < columns.end; ++ow) {
            const std::int64_t at = ((sample * s.out_h + oh) * s.out_w + ow) * s.c + c0;
            const auto here = static_cast<std::uint8_t>(
                (h + pool.pad_h - oh * pool.stride_h) * pool.kernel_w + w + pool.pad_w - ow * pool.stride_w);
#pragma omp simd
            for (int c = 0; c < count; ++c) {
              const float passed = to_float(gradient[at + c]);
              sum[c] += place[at + c] == here ? passed : 0.0f;
            }
          }
        }
        T* target = result + (row * s.w + w) * s.c + c0;
#pragma omp simd
        for (int c = 0; c < count; ++c) target[c] = from_float<T>(sum[c]);
      }
    }
  });
}

}  // namespace

void CpuBackend::max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) {
  constexpr auto name = "max_pool2d_forward";
  const PoolingSizes s = check_max_pool2d(name, pool, {"x", x}, {"y", y}, argmax);
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    forward(threads(), pool, s, x.as<T>(), y.as<T>(), argmax.as<std::uint8_t>());
  });
}

void CpuBackend::max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) {
  constexpr auto name = "max_pool2d_backward";
  const PoolingSizes s = check_max_pool2d(name, pool, {"dx", dx}, {"dy", dy}, argmax);
  with_element_type(name, "dy", dy, [&](auto type) {
    using T = decltype(type);
    backward(threads(), pool, s, dy.as<T>(), argmax.as<std::uint8_t>(), dx.as<T>());
  });
}

}  // namespace motley
