// What the kernels of batch normalisation share: how blocks and threads divide a tensor, its coefficients per channel,
// and the derivatives of its activations. A thread keeps to the channels of one pack, whose coefficients or sums it
// holds in registers, and goes down the rows.
#pragma once

#include <bit>
#include <numeric>

#include "kernels/cuda/activations.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley::cuda {

constexpr int batch_norm_threads = 256, batch_norm_across = 64;  // of a block at most; side by side
constexpr int batch_norm_columns = batch_norm_across * 8;        // of a block, with packs of eight

// A tensor [rows, c] as wide rows of `columns`, of which each is as many of its rows as make all packs whole and a
// block wide enough. The elements behind the last wide row, less than one, are the rest.
struct WideRows {
  std::int64_t elements, rows;
  int c, columns;
};

// Where a thread works: the first column of its pack, and of its block.
template <int width>
struct Place {
  int column, of_block;
  __device__ Place()
      : column(static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * width),
        of_block(static_cast<int>(blockIdx.x * blockDim.x) * width) {}
};

// A pack, or, with `part`, what of it lies within `left` elements.
template <bool part, int width, class T>
__device__ inline void load_some(const T* from, std::int64_t left, float (&to)[width]) {
  if constexpr (!part) {
    unpack(load<width>(from), to);
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i) to[i] = i < left ? to_float(from[i]) : 0.0f;
  }
}
template <bool part, int width, class T>
__device__ inline void store_some(T* to, std::int64_t left, const float (&from)[width]) {
  if constexpr (!part) {
    store_floats(to, from);
  } else {
#pragma unroll
    for (int i = 0; i < width; ++i)
      if (i < left) to[i] = from_float<T>(from[i]);
  }
}

// --- Coefficients and derivatives -------------------------------------------------------------------------

// (x - mean) * scale + beta with scale = rstd * gamma.
struct Affine {
  const float *mean, *rstd, *gamma, *beta;

  // The first three of a channel's coefficients.
  template <int count>
  __device__ void of_channel(int channel, float (&to)[count]) const {
    to[0] = mean[channel];
    to[1] = rstd[channel] * gamma[channel];
    to[2] = beta[channel];
  }
};
// One expression for both passes: backward, relu is to find the sign that it had forward.
__device__ inline float affine(float x, float mean, float scale, float beta) {
  return (x - mean) * scale + beta;
}

// to[k][i] = coefficient k of the channel of a thread's column i, where of_channel(channel, f) gives all of them to f.
// Through shared memory: each is formed once in a block, not by each of its threads. All threads must come.
template <int count, int width, class F>
__device__ inline void coefficients_of(const WideRows& wide, const Place<width>& place, F of_channel,
                                       float (&to)[count][width]) {
  __shared__ Shared<float[count * batch_norm_columns]> shared;
  const int of_block = static_cast<int>(blockDim.x) * width;
  const int channels = of_block < wide.c ? of_block : wide.c;
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  for (int i = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); i < channels; i += threads) {
    float values[count];
    of_channel((place.of_block + i) % wide.c, values);
#pragma unroll
    for (int k = 0; k < count; ++k) shared[k * batch_norm_columns + i] = values[k];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < width; ++i) {
    const int at = (place.column - place.of_block + i) % channels;
#pragma unroll
    for (int k = 0; k < count; ++k) to[k][i] = shared[k * batch_norm_columns + at];
  }
}

// g = dy * activation' of a value z before the activation, or of the y that became of it.
struct PassedOn {
  static constexpr bool reads_y = false;
  __device__ static float gradient(float, float, float dy) { return dy; }
};
struct ReluOfY {
  static constexpr bool reads_y = true;
  __device__ static float gradient(float, float y, float dy) { return y > 0.0f ? dy : 0.0f; }
};
struct ReluOfZ {
  static constexpr bool reads_y = false;
  __device__ static float gradient(float z, float, float dy) { return z > 0.0f ? dy : 0.0f; }
};
struct SwishOfZ {
  static constexpr bool reads_y = false;
  __device__ static float gradient(float z, float, float dy) { return dy * Swish::derivative(z); }
};

template <class T>
struct Gradients {
  const T *x, *y, *dy;
};

// --- Launches ---------------------------------------------------------------------------------------------

struct WideGrid {
  WideRows wide;
  std::int64_t across;  // blocks side by side
  dim3 threads;
};

inline WideGrid wide_grid(const BatchNormSizes& s, int width) {
  std::int64_t together = width / std::gcd(s.c, std::int64_t{width});
  while (2 * together * s.c <= batch_norm_across * width) together *= 2;
  const std::int64_t columns = together * s.c, packs = columns / width, elements = s.rows * s.c;
  MOTLEY_CHECK(columns <= std::numeric_limits<int>::max() / 2);
  const std::int64_t across = ceil_div(packs, batch_norm_across), block = ceil_div(packs, across);
  const auto down = std::bit_floor(static_cast<unsigned>(batch_norm_threads / block));
  return {{elements, elements / columns, static_cast<int>(s.c), static_cast<int>(columns)},
          across,
          extents(block, down)};
}

// work(width): the widest packs that all tensors can be accessed by.
template <class T, class Work>
void with_width(bool aligned, Work work) {
  if (aligned) return work(std::integral_constant<int, widest_pack<T>>{});
  work(std::integral_constant<int, 1>{});
}

// work(rule), by what the activation's derivative is found from.
template <class Work>
void with_rule(Activation activation, const ConstView& y, Work work) {
  if (activation == Activation::relu) return y.empty() ? work(ReluOfZ{}) : work(ReluOfY{});
  return activation == Activation::swish ? work(SwishOfZ{}) : work(PassedOn{});
}

inline Affine affine_of(const BatchNormViews& views) {
  return {views.mean.as<float>(), views.rstd.as<float>(), views.gamma.as<float>(), views.beta.as<float>()};
}

}  // namespace motley::cuda
