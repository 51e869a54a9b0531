// One pass over flat arrays, for operations that are bound by memory: a function object is called with the
// values of all inputs at an element and gives that of the output. 16-byte accesses where all addresses allow.
#pragma once

#include <algorithm>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.cuh"

namespace motley::cuda {

constexpr int elementwise_threads = 256;

// For a loop over `items` that strides by the grid: enough blocks to fill the device, and no more.
inline Grid grid_for(const CudaBackend& backend, std::int64_t items) {
  const std::int64_t most = 8 * std::int64_t{backend.multiprocessors()};
  return {extents(std::min(ceil_div(items, elementwise_threads), most)), dim3(elementwise_threads)};
}

// work(index): with an index of 32 bits, by which a thread divides much faster, where that can count `items`
// and a loop's last step beyond them, and of 64 bits elsewhere.
template <class F>
void with_index(std::int64_t items, F work) {
  if (items < std::int64_t{1} << 30) return work(std::int32_t{});
  work(std::int64_t{});
}

__device__ inline std::int64_t global_thread() {
  return std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t global_threads() {
  return std::int64_t{gridDim.x} * blockDim.x;
}

// y[i] = f(i, to_float(x[i])...); the tail of less than `width` elements goes one by one.
template <int width, class F, class Y, class... X>
__global__ void elementwise_kernel(F f, std::int64_t elements, Y* y, const X*... x) {
  const std::int64_t packs = elements / width;
  for (std::int64_t p = global_thread(); p < packs; p += global_threads()) {
    const std::int64_t first = p * width;
    Pack<Y, width> out;
    [&](const Pack<X, width>&... in) {
#pragma unroll
      for (int i = 0; i < width; ++i) out.at[i] = from_float<Y>(f(first + i, to_float(in.at[i])...));
    }(load<width>(x + first)...);
    store<width>(y + first, out);
  }
  for (std::int64_t i = packs * width + global_thread(); i < elements; i += global_threads())
    y[i] = from_float<Y>(f(i, to_float(x[i])...));
}

struct Same {
  __device__ float operator()(std::int64_t, float x) const { return x; }
};

// `f` is an object with `__device__ float operator()(std::int64_t element, float x...) const`. y may be any of
// the x.
template <class F, class Y, class... X>
void elementwise(const char* name, const CudaBackend& backend, std::int64_t elements, F f, Y* y,
                 const X*... x) {
  constexpr std::size_t largest = std::max({sizeof(Y), sizeof(X)...});
  constexpr int width = static_cast<int>(16 / largest);
  const bool whole = packs_fit<width>(y, x...);
  launch(name, whole ? elementwise_kernel<width, F, Y, X...> : elementwise_kernel<1, F, Y, X...>,
         grid_for(backend, ceil_div(elements, whole ? width : 1)), backend.stream(), f, elements, y, x...);
}

}  // namespace motley::cuda
