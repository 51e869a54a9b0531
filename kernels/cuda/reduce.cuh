// Reductions over a warp and over a block, by shuffles. Every thread gets the result, all of them the same
// bits, and the order is fixed. All threads of the warp or block must come to the call.
#pragma once

#include <cstring>
#include <limits>

#include "kernels/cuda/device.cuh"

namespace motley::cuda {

constexpr float infinity = std::numeric_limits<float>::infinity();

// What a reduction combines two values with: f(a, b) is f(b, a) to the bit.
struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN only where both are.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ int operator()(int a, int b) const { return a > b ? a : b; }
};

// The value of the lane whose number differs in the bits of `lanes`. T is a number, or a struct of 32-bit
// words.
template <class T>
__device__ inline T shuffle_xor(T x, int lanes) {
  if constexpr (std::is_arithmetic_v<T>) {
    return __shfl_xor_sync(full_warp, x, lanes);
  } else {
    static_assert(sizeof(T) % sizeof(unsigned) == 0 && std::is_trivially_copyable_v<T>);
    unsigned words[sizeof(T) / sizeof(unsigned)];
    std::memcpy(words, &x, sizeof(T));
#pragma unroll
    for (unsigned& word : words) word = __shfl_xor_sync(full_warp, word, lanes);
    std::memcpy(&x, words, sizeof(T));
    return x;
  }
}

template <class T, class F>
__device__ inline T warp_reduce(T x, F combine) {
#pragma unroll
  for (int lanes = warp_size / 2; lanes > 0; lanes /= 2) x = combine(x, shuffle_xor(x, lanes));
  return x;
}

template <class T>
__device__ inline T warp_sum(T x) {
  return warp_reduce(x, Sum{});
}
template <class T>
__device__ inline T warp_max(T x) {
  return warp_reduce(x, Max{});
}

// Over threadIdx.x of a block of any multiple of 32 up to 1024. combine(x, identity) is x. A block of one
// warp in x may have more in y: each then reduces alone, without a barrier.
template <class T, class F>
__device__ inline T block_reduce(T x, F combine, T identity) {
  __shared__ Shared<T[warp_size]> of_warp;
  const int warps = static_cast<int>(blockDim.x) / warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size,
            lane = static_cast<int>(threadIdx.x) % warp_size;
  x = warp_reduce(x, combine);
  if (warps == 1) return x;
  __syncthreads();  // until all have read what an earlier reduction left there
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_reduce(lane < warps ? of_warp[lane] : identity, combine);
}

template <class T>
__device__ inline T block_sum(T x) {
  return block_reduce(x, Sum{}, T{});
}
__device__ inline float block_max(float x) {
  return block_reduce(x, Max{}, -infinity);
}

}  // namespace motley::cuda
