// The kernel language on fibers: what a .cu file includes when a C++ compiler, not nvcc, compiles it. Kernels
// then are plain functions, and this header gives __global__, threadIdx, shared memory, __syncthreads, warp
// shuffles and votes the meaning that the CUDA C++ Programming Guide gives them.
//
// A block runs on fibers, one per thread. Each warp, in random order, runs as far as it can, and within a warp
// each lane, in random order, as far as it can: to the next barrier or the next exchange with other lanes. A
// result that needs threads to advance together without a barrier that says so is therefore wrong here, and
// differs from one order to another. Every call below is checked as far as the guide defines it; what breaks a
// rule throws sim::Violation from the call that made the device run.
#pragma once

// The toolkit's own headers come first: they declare threadIdx and its like, which are macros from here on.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace motley::sim {

// A rule of CUDA that a program broke: a divergent barrier, a write past an allocation, ...
class Violation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct ThreadPlace {
  uint3 thread{}, block{};
  dim3 block_dim, grid_dim;
};

// The thread that is running.
extern const ThreadPlace* place;

struct Grid {
  const char* kernel = "";
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;
};

// Calls `body` once for each thread of the grid, block after block. `order` draws the order of blocks, warps
// and lanes: the same number gives the same order.
void run_grid(const Grid& grid, const std::function<void()>& body, std::uint64_t order);

// Puts the grid on a stream, as a launch and cudaGetLastError after it do. `body` is called when the stream comes to it.
cudaError_t launch(const Grid& grid, std::function<void()> body, cudaStream_t stream);

// --- What kernels call ------------------------------------------------------------------------------------

void barrier(const std::source_location& where);
// What the lanes of a warp exchange: the value of each, seen by a function of all of them. Lanes in `mask`
// must all come to the same line.
enum class Exchange : std::uint8_t { shuffle, shuffle_xor, shuffle_down, shuffle_up, ballot, sync };
std::uint64_t exchange(Exchange kind, unsigned mask, std::uint64_t value, int argument,
                       const std::source_location& where);
// The dynamic shared memory of the running block: 16-byte aligned, filled with what is a NaN in every type.
void* dynamic_shared_memory();

// Counts the blocks that have run.
extern std::uint64_t block_number;

// When a block first comes to an array in static shared memory.
void begin_shared(void* array, std::size_t bytes);

// An array in static shared memory, T being its type: filled with what is a NaN in every type when a block
// first comes to it, so that nobody reads what another block has left.
template <class T>
class Shared {
 public:
  template <class Index>
  auto& operator[](Index index) {
    if (block_ != block_number) {
      block_ = block_number;
      begin_shared(&array_, sizeof(T));
    }
    return array_[index];
  }

 private:
  alignas(16) T array_{};
  std::uint64_t block_ = 0;
};

template <class T>
T exchange_value(Exchange kind, unsigned mask, T value, int argument, const std::source_location& where) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = exchange(kind, mask, word, argument, where);
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

}  // namespace motley::sim

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __restrict__
#define __global__
#define __device__
#define __host__
// One block runs at a time.
#define __shared__ static
#define __constant__ static const
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define threadIdx (::motley::sim::place->thread)
#define blockIdx (::motley::sim::place->block)
#define blockDim (::motley::sim::place->block_dim)
#define gridDim (::motley::sim::place->grid_dim)

#define __syncthreads() ::motley::sim::barrier(std::source_location::current())

inline void __syncwarp(unsigned mask = 0xffffffffu,
                       const std::source_location& where = std::source_location::current()) {
  ::motley::sim::exchange(::motley::sim::Exchange::sync, mask, 0, 0, where);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int lane,
              const std::source_location& where = std::source_location::current()) {
  return ::motley::sim::exchange_value(::motley::sim::Exchange::shuffle, mask, value, lane, where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes,
                  const std::source_location& where = std::source_location::current()) {
  return ::motley::sim::exchange_value(::motley::sim::Exchange::shuffle_xor, mask, value, lanes, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes,
                   const std::source_location& where = std::source_location::current()) {
  return ::motley::sim::exchange_value(::motley::sim::Exchange::shuffle_down, mask, value,
                                       static_cast<int>(lanes), where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes,
                 const std::source_location& where = std::source_location::current()) {
  return ::motley::sim::exchange_value(::motley::sim::Exchange::shuffle_up, mask, value,
                                       static_cast<int>(lanes), where);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const std::source_location& where = std::source_location::current()) {
  return static_cast<unsigned>(
      ::motley::sim::exchange(::motley::sim::Exchange::ballot, mask, predicate != 0 ? 1 : 0, 0, where));
}
inline int __any_sync(unsigned mask, int predicate,
                      const std::source_location& where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const std::source_location& where = std::source_location::current()) {
  return (__ballot_sync(mask, predicate, where) & mask) == mask ? 1 : 0;
}
