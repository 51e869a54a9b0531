// Sums over the pixels of channels-last images, one for each sample and channel, in a fixed order.
#pragma once

#include <algorithm>
#include <bit>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/rows.cuh"

namespace motley::cuda {

constexpr int pixel_sum_threads = 512;

// sums[n, c] = factor * sum over the pixels of term(place, ...), which gives the terms of `width` neighbouring
// channels and may write them, too. Threads along x take neighbouring channels, those along y, a power of two,
// every blockDim.y-th pixel. Grid: channels in x, samples in y.
template <class T, int width, class Term>
__global__ void __launch_bounds__(pixel_sum_threads)
    pixel_sums_kernel(Term term, std::int64_t samples, std::int64_t pixels, std::int64_t channels,
                      float factor, T* sums) {
  __shared__ Shared<Pack<float, width>[pixel_sum_threads]> parts;
  const std::int64_t channel = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * width;
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  for (std::int64_t sample = blockIdx.y; sample < samples; sample += gridDim.y) {
    Pack<float, width> sum;
#pragma unroll
    for (int i = 0; i < width; ++i) sum.at[i] = 0;
    if (channel < channels) {
      const Term of_sample = term.at_sample(sample, pixels, channels, channel);
#pragma unroll 4
      for (std::int64_t pixel = threadIdx.y; pixel < pixels; pixel += blockDim.y) {
        float value[width];
        of_sample(pixel * channels, value);
#pragma unroll
        for (int i = 0; i < width; ++i) sum.at[i] += value[i];
      }
    }
    parts[at] = sum;
    for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.y < half) {
        const Pack<float, width> other = parts[at + half * blockDim.x];
#pragma unroll
        for (int i = 0; i < width; ++i) sum.at[i] += other.at[i];
        parts[at] = sum;
      }
    }
    if (threadIdx.y == 0 && channel < channels) {
      float result[width];
#pragma unroll
      for (int i = 0; i < width; ++i) result[i] = factor * sum.at[i];
      store_floats(sums + sample * channels + channel, result);
    }
    __syncthreads();
  }
}

// Few pixels leave rows of threads without work: a block has no more than there are pixels.
template <class T, int width, class Term>
void pixel_sums(const char* name, const CudaBackend& backend, const Term& term, std::int64_t samples,
                std::int64_t pixels, std::int64_t channels, float factor, T* sums) {
  const auto power = [](std::int64_t count) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count)));
  };
  const std::int64_t packs = channels / width, across = std::min<std::int64_t>(power(packs), warp_size);
  const std::int64_t down = std::min(pixel_sum_threads / across, power(std::max<std::int64_t>(pixels, 1)));
  launch(name, pixel_sums_kernel<T, width, Term>,
         {extents(ceil_div(packs, across), std::min(samples, most_in_y)), extents(across, down)},
         backend.stream(), term, samples, pixels, channels, factor, sums);
}

}  // namespace motley::cuda
