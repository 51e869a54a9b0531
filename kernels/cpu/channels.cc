// Operations on the channels of channels-last images: copying some of them, shuffling, scaling each.
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr int channel_block = 64;  // channels whose sums are held in registers or the first-level cache

// body(begin, end) for blocks of pixels of `channels` channels.
template <class Body>
void for_pixels(int threads, std::int64_t pixels, std::int64_t channels, const Body& body) {
  parallel_blocks(threads, pixels, ceil_div(elementwise_block, std::max<std::int64_t>(channels, 1)), body);
}

// y [columns, rows] = x [rows, columns] transposed, of one pixel. One of the two is a constant, so that the
// loop over the other is vectorised.
template <int rows, class T>
void interleave(std::int64_t columns, const T* x, T* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < columns; ++i) {
    for (int r = 0; r < rows; ++r) y[i * rows + r] = x[r * columns + i];
  }
}
template <int columns, class T>
void separate(std::int64_t rows, const T* x, T* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < rows; ++i) {
    for (int c = 0; c < columns; ++c) y[c * rows + i] = x[i * columns + c];
  }
}
template <class T>
void transpose_any(std::int64_t rows, std::int64_t columns, const T* x, T* y) {
  for (std::int64_t i = 0; i < columns; ++i) {
    for (std::int64_t r = 0; r < rows; ++r) y[i * rows + r] = x[r * columns + i];
  }
}

template <class T>
void shuffle(int threads, const ImageSizes& s, std::int64_t groups, const T* x, T* y) {
  const std::int64_t size = s.c / groups;
  for_pixels(threads, s.n * s.pixels, s.c, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const T* from = x + p * s.c;
      T* to = y + p * s.c;
      if (groups == 2) {
        interleave<2>(size, from, to);
      } else if (groups == 3) {
        interleave<3>(size, from, to);
      } else if (size == 2) {
        separate<2>(groups, from, to);
      } else if (size == 3) {
        separate<3>(groups, from, to);
      } else {
        transpose_any(groups, size, from, to);
      }
    }
  });
}

// dx and ds of one sample and `count` channels.
template <class T>
void scale_backward(std::int64_t pixels, std::int64_t stride, int count, const T* x, const T* s, const T* dy,
                    T* dx, T* ds) {
  // Runs of pixels are summed by themselves first: errors then grow with the root of an image's size.
  constexpr std::int64_t run = 32;
  float sum[channel_block] = {};
  for (std::int64_t first = 0; first < pixels; first += run) {
    float of_run[channel_block] = {};
    const std::int64_t end = std::min(pixels, first + run);
    for (std::int64_t p = first; p < end; ++p) {
      const T* input = x + p * stride;
      const T* gradient = dy + p * stride;
      T* result = dx + p * stride;
#pragma omp simd
      for (int c = 0; c < count; ++c) {
        const float g = to_float(gradient[c]);
        of_run[c] += g * to_float(input[c]);
        result[c] = from_float<T>(g * to_float(s[c]));
      }
    }
#pragma omp simd
    for (int c = 0; c < count; ++c) sum[c] += of_run[c];
  }
#pragma omp simd
  for (int c = 0; c < count; ++c) ds[c] = from_float<T>(sum[c]);
}

}  // namespace

void CpuBackend::copy_channels(ConstView x, std::int64_t from, View y, std::int64_t to, std::int64_t count,
                               bool accumulate) {
  constexpr auto name = "copy_channels";
  const ImageSizes s = check_copy_channels(name, x, from, y, to, count);
  const std::int64_t x_channels = x.shape[3];
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    const T* source = x.as<T>() + from;
    T* target = y.as<T>() + to;
    for_pixels(threads(), s.n * s.pixels, count, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const T* in = source + p * x_channels;
        T* out = target + p * s.c;
        if (accumulate) {
#pragma omp simd
          for (std::int64_t c = 0; c < count; ++c) out[c] = from_float<T>(to_float(out[c]) + to_float(in[c]));
        } else {
#pragma omp simd
          for (std::int64_t c = 0; c < count; ++c) out[c] = in[c];
        }
      }
    });
  });
}

void CpuBackend::channel_shuffle(std::int64_t groups, ConstView x, View y) {
  constexpr auto name = "channel_shuffle";
  const ImageSizes s = check_channel_shuffle(name, groups, x, y);
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    shuffle(threads(), s, groups, x.as<T>(), y.as<T>());
  });
}

void CpuBackend::scale_channels_forward(ConstView x, ConstView s, View y) {
  constexpr auto name = "scale_channels_forward";
  const ImageSizes sizes = check_scale_channels_forward(name, x, s, y);
  with_element_type(name, "x", x, [&](auto type) {
    using T = decltype(type);
    const T* in = x.as<T>();
    const T* factors = s.as<T>();
    T* out = y.as<T>();
    for_pixels(threads(), sizes.n * sizes.pixels, sizes.c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const T* factor = factors + p / sizes.pixels * sizes.c;
        const std::int64_t at = p * sizes.c;
#pragma omp simd
        for (std::int64_t c = 0; c < sizes.c; ++c)
          out[at + c] = from_float<T>(to_float(in[at + c]) * to_float(factor[c]));
      }
    });
  });
}

void CpuBackend::scale_channels_backward(ConstView x, ConstView s, ConstView dy, View dx, View ds) {
  constexpr auto name = "scale_channels_backward";
  const ImageSizes sizes = check_scale_channels_backward(name, x, s, dy, dx, ds);
  with_element_type(name, "dy", dy, [&](auto type) {
    using T = decltype(type);
    const T* input = x.as<T>();
    const T* factors = s.as<T>();
    const T* gradient = dy.as<T>();
    T* result = dx.as<T>();
    T* sums = ds.as<T>();
    const std::int64_t blocks = ceil_div(sizes.c, channel_block);
    parallel_for(threads(), sizes.n * blocks, [&](std::int64_t index) {
      const std::int64_t sample = index / blocks, c0 = index % blocks * channel_block;
      const auto count = static_cast<int>(std::min<std::int64_t>(channel_block, sizes.c - c0));
      const std::int64_t at = sample * sizes.pixels * sizes.c + c0, factor = sample * sizes.c + c0;
      scale_backward(sizes.pixels, sizes.c, count, input + at, factors + factor, gradient + at, result + at,
                     sums + factor);
    });
  });
}

}  // namespace motley
