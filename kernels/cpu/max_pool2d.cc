// Maximum pooling, channels-last: the loops run over windows and are vectorised over channels.
#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr int channel_block =
    64;  // channels whose running maximum is held in registers or the first-level cache

// The part of a window that lies inside the image along one dimension.
struct Range {
  std::int64_t begin, end;  // places in the window
};
Range inside(std::int64_t first, std::int64_t kernel, std::int64_t extent) {
  return {std::max<std::int64_t>(0, -first), std::min(kernel, extent - first)};
}

// The outputs whose windows cover position i of the input.
Range covering(std::int64_t i, std::int64_t kernel, std::int64_t stride, std::int64_t pad,
               std::int64_t outputs) {
  const std::int64_t last = i + pad;  // window o covers [o * stride, o * stride + kernel) of the padded input
  const std::int64_t begin = last < kernel ? 0 : (last - kernel) / stride + 1;
  return {begin, std::min(outputs, last / stride + 1)};
}

}  // namespace

void CpuBackend::max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) {
  const PoolingSizes s = check_max_pool2d("max_pool2d_forward", pool, {"x", x}, {"y", y}, argmax);
  const float* in = x.as<float>();
  float* out = y.as<float>();
  std::uint8_t* place = argmax.as<std::uint8_t>();

  parallel_for(threads(), s.n * s.out_h, [&](std::int64_t row) {
    const std::int64_t top = row % s.out_h * pool.stride_h - pool.pad_h;
    const float* image = in + row / s.out_h * s.h * s.w * s.c;
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
            const float* pixel = image + ((top + r) * s.w + left + k) * s.c + c0;
            const auto here = static_cast<std::int32_t>(r * pool.kernel_w + k);
#pragma omp simd
            for (int c = 0; c < count; ++c) {
              // A NaN wins over everything, a later one over an earlier one, as in PyTorch.
              const float value = pixel[c], highest = best[c];
              const std::int32_t place_of_highest = index[c];
              const bool wins = (value > highest) | (value != value);
              best[c] = wins ? value : highest;
              index[c] = wins ? here : place_of_highest;
            }
          }
        }
        float* maximum = out + at + c0;
        std::uint8_t* place_of_maximum = place + at + c0;
#pragma omp simd
        for (int c = 0; c < count; ++c) {
          maximum[c] = best[c];
          place_of_maximum[c] = static_cast<std::uint8_t>(index[c]);
        }
      }
    }
  });
}

// Every input element gathers from the windows that cover it, so that no two threads write one place and the
// order of additions is fixed.
void CpuBackend::max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) {
  const PoolingSizes s = check_max_pool2d("max_pool2d_backward", pool, {"dx", dx}, {"dy", dy}, argmax);
  const float* gradient = dy.as<float>();
  const std::uint8_t* place = argmax.as<std::uint8_t>();
  float* result = dx.as<float>();

  parallel_for(threads(), s.n * s.h, [&](std::int64_t row) {
    const std::int64_t sample = row / s.h, h = row % s.h;
    const Range rows = covering(h, pool.kernel_h, pool.stride_h, pool.pad_h, s.out_h);
    for (std::int64_t w = 0; w < s.w; ++w) {
      const Range columns = covering(w, pool.kernel_w, pool.stride_w, pool.pad_w, s.out_w);
      float* target = result + (row * s.w + w) * s.c;
      std::fill_n(target, s.c, 0.0f);
      for (std::int64_t oh = rows.begin; oh < rows.end; ++oh) {
        for (std::int64_t ow = columns.begin; ow < columns.end; ++ow) {
          const std::int64_t at = ((sample * s.out_h + oh) * s.out_w + ow) * s.c;
          const auto here = static_cast<std::uint8_t>((h + pool.pad_h - oh * pool.stride_h) * pool.kernel_w +
                                                      w + pool.pad_w - ow * pool.stride_w);
#pragma omp simd
          for (std::int64_t c = 0; c < s.c; ++c) target[c] += place[at + c] == here ? gradient[at + c] : 0.0f;
        }
      }
    }
  });
}

}  // namespace motley
