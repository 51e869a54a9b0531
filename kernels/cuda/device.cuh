// What every .cu file includes: CUDA's own headers, or, where a C++ compiler builds the file for the simulated
// device (tests/sim), that device's; the element types; and the launch of a kernel, the same text for both.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#if !defined(__CUDACC__)
#include "simt.h"
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "core/error.h"
#include "core/view.h"
#include "kernels/cuda/cuda.h"

namespace motley {

template <>
struct DTypeOf<__nv_bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<__half> {
  static constexpr DType value = DType::f16;
};

namespace cuda {

constexpr int warp_size = 32;
constexpr unsigned full_warp = 0xffffffffu;

// --- Element types: float, __half, __nv_bfloat16 ----------------------------------------------------------

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__half x) {
  return __half2float(x);
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Rounded to nearest even.
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// `width` neighbouring elements, loaded and stored by one access of up to 16 bytes. The address must be a
// multiple of the size.
template <class T, int width>
struct alignas(sizeof(T) * width) Pack {
  T at[width];
};

template <class T>
constexpr int widest_pack = static_cast<int>(16 / sizeof(T));

template <int width, class T>
__device__ inline Pack<T, width> load(const T* from) {
#if !defined(__CUDACC__)
  if (reinterpret_cast<std::uintptr_t>(from) % alignof(Pack<T, width>) != 0)
    throw sim::Violation("a load of several elements from an address that is not a multiple of their size");
#endif
  return *reinterpret_cast<const Pack<T, width>*>(from);
}

template <int width, class T>
__device__ inline void store(T* to, const Pack<T, width>& pack) {
#if !defined(__CUDACC__)
  if (reinterpret_cast<std::uintptr_t>(to) % alignof(Pack<T, width>) != 0)
    throw sim::Violation("a store of several elements to an address that is not a multiple of their size");
#endif
  *reinterpret_cast<Pack<T, width>*>(to) = pack;
}

inline bool aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

// Elements of one access when `width` of them are wanted.
template <class T, int width>
constexpr int access_width = width < widest_pack<T> ? width : widest_pack<T>;

// Can arrays that begin here be accessed `width` elements at a time? None is there where null is.
template <int width, class... T>
bool packs_fit(const T*... data) {
  return (aligned(data, sizeof(T) * access_width<T, width>) && ...);
}
// And each row of `length` elements of matrices that begin here?
template <int width, class... T>
bool rows_fit(std::int64_t length, const T*... data) {
  return length % width == 0 && packs_fit<width>(data...);
}

// The type of an array in static shared memory, as in `__shared__ Shared<float[32]> sums;`: a plain one on a
// GPU, and on the simulated device one that it looks after. Its elements are reached by [] only.
#if defined(__CUDACC__)
template <class T>
using Shared = T;
#else
using sim::Shared;
#endif

// The dynamic shared memory of the block, whose size is the launch's.
template <class T>
__device__ inline T* dynamic_shared() {
#if defined(__CUDACC__)
  extern __shared__ __align__(16) unsigned char motley_dynamic_shared[];
  return reinterpret_cast<T*>(motley_dynamic_shared);
#else
  return static_cast<T*>(sim::dynamic_shared_memory());
#endif
}

// Calls work with a value of the view's element type, one of float32, float16 and bfloat16:
//   with_element_type("relu", "x", x.dtype, [&](auto type) { using T = decltype(type); ... });
template <class F>
void with_element_type(const char* operation, const char* argument, DType dtype, F work) {
  switch (dtype) {
    case DType::f32:
      return work(float{});
    case DType::f16:
      return work(__half{});
    case DType::bf16:
      return work(__nv_bfloat16{});
    default:
      fail(ExitCode::internal, "{}: {} is {}, but float32, float16 or bfloat16 belongs there", operation,
           argument, name_of(dtype));
  }
}

// --- Launch -----------------------------------------------------------------------------------------------

struct Grid {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

constexpr std::int64_t most_in_y = 65535;  // blocks, and in z

inline dim3 extents(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// kernel<<<grid, stream>>>(arguments...), checked. `name` is the operation's. A grid without blocks, which
// CUDA refuses, is no work.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
            Arguments... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
#if defined(__CUDACC__)
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), name);
#else
  check(sim::launch(
            {name, grid.blocks, grid.threads, grid.shared_bytes},
            [=] { kernel(static_cast<Parameters>(arguments)...); }, stream),
        name);
#endif
}

}  // namespace cuda
}  // namespace motley
