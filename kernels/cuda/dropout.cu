// Dropout whose mask is made of counted random numbers wherever it is needed and never stored: one pass, one
// Philox call for four elements.
#include "kernels/cuda/dropout.cuh"

#include "kernels/checks.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using namespace cuda;

// A thread takes the elements of one 16-byte access, one by one where rows do not allow such accesses.
template <class T, bool whole>
__global__ void dropout_kernel(Dropout dropout, std::int64_t rows, std::int64_t length, const T* x, T* y) {
  constexpr int width = widest_pack<T>;
  for_rows(rows, (length + width - 1) / width, [&](std::int64_t row, std::int64_t item) {
    const std::int64_t first = item * width, at = row * length + first;
    float value[width];
    if constexpr (whole) {
      load_floats(x + at, value);
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i) value[i] = first + i < length ? to_float(x[at + i]) : 0.0f;
    }
    dropout.apply(row, first, value);
    if constexpr (whole) {
      store_floats(y + at, value);
    } else {
#pragma unroll
      for (int i = 0; i < width; ++i)
        if (first + i < length) y[at + i] = from_float<T>(value[i]);
    }
  });
}

// A thread has the mask of its channels at hand and goes over pixels with it. Blocks: groups of `width`
// channels in x, pixels in y; grid: pixels in x, samples in y.
template <class T, int width>
__global__ void dropout_channels_kernel(Dropout dropout, std::int64_t samples, std::int64_t pixels,
                                        std::int64_t channels, const T* x, T* y) {
  for (std::int64_t sample = blockIdx.y; sample < samples; sample += gridDim.y) {
    for (std::int64_t group = threadIdx.x; group < channels / width; group += blockDim.x) {
      float factor[width];
#pragma unroll
      for (float& f : factor) f = 1.0f;
      dropout.apply(sample, group * width, factor);
      for (std::int64_t pixel = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; pixel < pixels;
           pixel += std::int64_t{gridDim.x} * blockDim.y) {
        const std::int64_t at = (sample * pixels + pixel) * channels + group * width;
        float value[width];
        load_floats(x + at, value);
#pragma unroll
        for (int i = 0; i < width; ++i) value[i] = factor[i] == 0.0f ? 0.0f : value[i] * factor[i];
        store_floats(y + at, value);
      }
    }
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::dropout(const DropoutMask& mask, ConstView x, View y) {
  constexpr auto name = "dropout";
  check_view(name, "y", y, x.dtype, x.shape);
  MOTLEY_CHECK(x.shape.rank() >= 1);
  const Dropout drop = dropout_of(name, mask);
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int width = widest_pack<T>;
    check_dtype(name, "x", x, x.dtype);
    if (x.elements() == 0) return;
    const std::int64_t rows = x.shape[0], length = x.shape.elements_from(1);
    const Grid grid = row_grid(*this, rows, ceil_div(length, width));
    const auto kernel =
        rows_fit<width>(length, x.as<T>(), y.as<T>()) ? dropout_kernel<T, true> : dropout_kernel<T, false>;
    launch(name, kernel, grid, stream(), drop, rows, length, x.as<T>(), y.as<T>());
  });
}

void CudaBackend::dropout_channels(const DropoutMask& mask, ConstView x, View y) {
  constexpr auto name = "dropout_channels";
  check_dropout_channels(name, x, y);
  const Dropout drop = dropout_of(name, mask);
  if (x.elements() == 0) return;
  const std::int64_t samples = x.shape[0], pixels = x.shape[1] * x.shape[2], channels = x.shape[3];
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int wide = widest_pack<T>;
    const bool whole = rows_fit<wide>(channels, x.as<T>(), y.as<T>());
    const std::int64_t across = std::min(row_threads, channels / (whole ? wide : 1)),
                       down = row_threads / across;
    const std::int64_t in_y = std::min(samples, most_in_y);
    // A thread should meet a few pixels for each mask that it makes.
    const std::int64_t in_x = std::min(ceil_div(pixels, 4 * down), 8 * std::int64_t{multiprocessors()});
    launch(name, whole ? dropout_channels_kernel<T, wide> : dropout_channels_kernel<T, 1>,
           {extents(in_x, in_y), extents(across, down)}, stream(), drop, samples, pixels, channels, x.as<T>(),
           y.as<T>());
  });
}

}  // namespace motley
