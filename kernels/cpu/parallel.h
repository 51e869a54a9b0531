// Loops over blocks of a fixed size. The blocks do not depend on the number of threads, only who runs them
// does.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace motley {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Elements of float32 per block of an element-wise loop: small enough to balance, large enough to outweigh
// the start of a parallel region.
inline constexpr std::int64_t elementwise_block = 16384;

// body(index) for every index in [0, count), each on one thread, in any order.
template <class Body>
void parallel_for(int threads, std::int64_t count, const Body& body) {
  // A region with fewer threads than the last one would make the OpenMP runtime end and restart threads: all
  // or one.
  if (threads == 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i);
}

// body(index, thread) with the number of the thread, in [0, threads), that runs it: which part of the
// scratch memory is its own.
template <class Body>
void parallel_for_threads(int threads, std::int64_t count, const Body& body) {
  if (threads == 1 || count <= 1) {
    for (std::int64_t i = 0; i < count; ++i) body(i, 0);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
}

// body(begin, end) for consecutive blocks of [0, elements).
template <class Body>
void parallel_blocks(int threads, std::int64_t elements, std::int64_t block, const Body& body) {
  parallel_for(threads, ceil_div(elements, block),
               [&](std::int64_t i) { body(i * block, std::min(elements, (i + 1) * block)); });
}

}  // namespace motley
