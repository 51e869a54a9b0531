// Where the windows of pooling lie in channels-last images.
#pragma once

#include <algorithm>

#include "kernels/backend.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"
#include "kernels/windows.h"

namespace motley::cuda {

// x [n, h, w, c], y [n, out_h, out_w, c]. `Index` is 32 bits wide where that is enough, because each thread
// divides by several extents.
template <class Index>
struct Pooling {
  Index n, h, w, c, out_h, out_w;
  Index kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

// What item number `item` of a kernel works on: one window of y or pixel of x, of an image of h x w of them, and the first
// of `width` channels.
template <class Index>
struct Place {
  Index at, channel, sample, row, column;
};
template <int width, class Index>
__device__ inline Place<Index> place_of(Index item, Index c, Index h, Index w) {
  const Index packs = c / width, at = item / packs;
  const Index line = at / w, sample = line / h;
  return {at, (item - at * packs) * width, sample, line - sample * h, at - line * w};
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

// launch_as(type, width, index): the widest accesses and the narrowest index that fit x, y and, for the maximum's places,
// argmax.
template <class Launch>
void choose_pooling(const char* name, const Pooling<std::int64_t>& p, const ConstView& x, const ConstView& y,
                    const ConstView& argmax, Launch launch_as) {
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int widest = widest_pack<T>;
    const bool whole = rows_fit<widest>(p.c, x.as<T>(), y.as<T>()) &&
                       (argmax.empty() || rows_fit<widest>(p.c, argmax.as<std::uint8_t>()));
    with_index(std::max({x.elements(), y.elements(), p.stride_h, p.stride_w}), [&](auto index) {
      if (whole) return launch_as(type, std::integral_constant<int, widest>{}, index);
      launch_as(type, std::integral_constant<int, 1>{}, index);
    });
  });
}

}  // namespace motley::cuda
