// Where the windows of pooling lie in channels-last images.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/device.cuh"
#include "kernels/operation_checks.h"

namespace motley::cuda {

// x [n, h, w, c], y [n, out_h, out_w, c]. `Index` is 32 bits wide where that is enough, because each thread
// divides by several extents.
template <class Index>
struct Pooling {
  Index n, h, w, c, out_h, out_w;
  Index kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

template <class Index>
struct Range {
  Index begin, end;
};

// The part of a window that lies inside the image along one dimension: places in the window.
template <class Index>
__device__ inline Range<Index> inside(Index first, Index kernel, Index extent) {
  return {first < 0 ? -first : 0, extent - first < kernel ? extent - first : kernel};
}

// The outputs whose windows cover position i of the input: window o covers [o * stride, o * stride + kernel)
// of the padded input.
template <class Index>
__device__ inline Range<Index> covering(Index i, Index kernel, Index stride, Index pad, Index outputs) {
  const Index at = i + pad, last = at / stride + 1;
  return {at < kernel ? 0 : (at - kernel) / stride + 1, last < outputs ? last : outputs};
}

inline Pooling<std::int64_t> pooling_of(const Pool2d& pool, const PoolingSizes& s) {
  return {s.n,           s.h,           s.w,           s.c,           s.out_h,    s.out_w,
          pool.kernel_h, pool.kernel_w, pool.stride_h, pool.stride_w, pool.pad_h, pool.pad_w};
}

template <class Index>
Pooling<Index> narrowed(const Pooling<std::int64_t>& p) {
  const auto n = [](std::int64_t value) { return static_cast<Index>(value); };
  return {n(p.n),        n(p.h),        n(p.w),        n(p.c),        n(p.out_h), n(p.out_w),
          n(p.kernel_h), n(p.kernel_w), n(p.stride_h), n(p.stride_w), n(p.pad_h), n(p.pad_w)};
}

}  // namespace motley::cuda
