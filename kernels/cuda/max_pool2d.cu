// Maximum pooling, channels-last: a thread works on one window, or one pixel of the gradient, of neighbouring
// channels.
#include <cmath>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr int pool_width = 4;  // channels of a thread

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

template <int width, class Index>
__global__ void __launch_bounds__(cuda::elementwise_threads)
    forward_kernel(Pooling<Index> p, const float* x, float* y, std::uint8_t* argmax) {
  const Index packs = p.c / width, items = p.n * p.out_h * p.out_w * packs;
  for (auto item = static_cast<Index>(cuda::global_thread()); item < items;
       item += static_cast<Index>(cuda::global_threads())) {
    const Index window = item / packs, channel = (item - window * packs) * width;
    const Index row = window / p.out_w, ow = window - row * p.out_w;
    const Index sample = row / p.out_h, oh = row - sample * p.out_h;
    const Index top = oh * p.stride_h - p.pad_h, left = ow * p.stride_w - p.pad_w;
    const Range<Index> rows = inside(top, p.kernel_h, p.h), columns = inside(left, p.kernel_w, p.w);
    const float* const image = x + sample * p.h * p.w * p.c + channel;

    cuda::Pack<float, width> best;
    cuda::Pack<std::uint8_t, width> place;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      best.at[i] = -INFINITY;
      place.at[i] = static_cast<std::uint8_t>(rows.begin * p.kernel_w + columns.begin);
    }
    for (Index r = rows.begin; r < rows.end; ++r) {
      for (Index k = columns.begin; k < columns.end; ++k) {
        const auto value = cuda::load<width>(image + ((top + r) * p.w + left + k) * p.c);
        const auto here = static_cast<std::uint8_t>(r * p.kernel_w + k);
#pragma unroll
        for (int i = 0; i < width; ++i) {
          // A NaN wins over everything, a later one over an earlier one, as in PyTorch.
          const bool wins = value.at[i] > best.at[i] || value.at[i] != value.at[i];
          best.at[i] = wins ? value.at[i] : best.at[i];
          place.at[i] = wins ? here : place.at[i];
        }
      }
    }
    const Index at = window * p.c + channel;
    cuda::store<width>(y + at, best);
    cuda::store<width>(argmax + at, place);
  }
}

// Every element of dx gathers from the windows that cover it, so that no two threads write one place and the
// order of additions is fixed.
template <int width, class Index>
__global__ void __launch_bounds__(cuda::elementwise_threads)
    backward_kernel(Pooling<Index> p, const float* dy, const std::uint8_t* argmax, float* dx) {
  const Index packs = p.c / width, items = p.n * p.h * p.w * packs;
  for (auto item = static_cast<Index>(cuda::global_thread()); item < items;
       item += static_cast<Index>(cuda::global_threads())) {
    const Index pixel = item / packs, channel = (item - pixel * packs) * width;
    const Index row = pixel / p.w, w = pixel - row * p.w;
    const Index sample = row / p.h, h = row - sample * p.h;
    const Range<Index> rows = covering(h, p.kernel_h, p.stride_h, p.pad_h, p.out_h);
    const Range<Index> columns = covering(w, p.kernel_w, p.stride_w, p.pad_w, p.out_w);

    cuda::Pack<float, width> sum;
#pragma unroll
    for (int i = 0; i < width; ++i) sum.at[i] = 0;
    for (Index oh = rows.begin; oh < rows.end; ++oh) {
      for (Index ow = columns.begin; ow < columns.end; ++ow) {
        const Index at = ((sample * p.out_h + oh) * p.out_w + ow) * p.c + channel;
        const auto place = cuda::load<width>(argmax + at);
        const auto gradient = cuda::load<width>(dy + at);
        const Index here = (h + p.pad_h - oh * p.stride_h) * p.kernel_w + w + p.pad_w - ow * p.stride_w;
#pragma unroll
        for (int i = 0; i < width; ++i) sum.at[i] += place.at[i] == here ? gradient.at[i] : 0.0f;
      }
    }
    cuda::store<width>(dx + pixel * p.c + channel, sum);
  }
}

Pooling<std::int64_t> pooling_of(const Pool2d& pool, const PoolingSizes& s) {
  return {s.n,           s.h,           s.w,           s.c,           s.out_h,    s.out_w,
          pool.kernel_h, pool.kernel_w, pool.stride_h, pool.stride_w, pool.pad_h, pool.pad_w};
}

template <class Index>
Pooling<Index> narrowed(const Pooling<std::int64_t>& p) {
  const auto n = [](std::int64_t value) { return static_cast<Index>(value); };
  return {n(p.n),        n(p.h),        n(p.w),        n(p.c),        n(p.out_h), n(p.out_w),
          n(p.kernel_h), n(p.kernel_w), n(p.stride_h), n(p.stride_w), n(p.pad_h), n(p.pad_w)};
}

// launch_as(width, index): the widest accesses and the narrowest index that fit.
template <class Launch>
void choose(const Pooling<std::int64_t>& p, const ConstView& x, const ConstView& y, const ConstView& argmax,
            Launch launch_as) {
  const bool whole = cuda::rows_fit<pool_width>(p.c, x.as<float>(), y.as<float>(), argmax.as<std::uint8_t>());
  cuda::with_index(std::max({x.elements(), y.elements(), p.stride_h, p.stride_w}), [&](auto index) {
    if (whole) return launch_as(std::integral_constant<int, pool_width>{}, index);
    launch_as(std::integral_constant<int, 1>{}, index);
  });
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) {
  constexpr auto name = "max_pool2d_forward";
  const auto p = pooling_of(pool, check_max_pool2d(name, pool, {"x", x}, {"y", y}, argmax));
  choose(p, x, y, argmax, [&](auto width, auto index) {
    using Index = decltype(index);
    const cuda::Grid grid = cuda::grid_for(*this, y.elements() / width);
    cuda::launch(name, forward_kernel<decltype(width)::value, Index>, grid, stream(), narrowed<Index>(p),
                 x.as<float>(), y.as<float>(), argmax.as<std::uint8_t>());
  });
}

void CudaBackend::max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) {
  constexpr auto name = "max_pool2d_backward";
  const auto p = pooling_of(pool, check_max_pool2d(name, pool, {"dx", dx}, {"dy", dy}, argmax));
  choose(p, dx, dy, argmax, [&](auto width, auto index) {
    using Index = decltype(index);
    const cuda::Grid grid = cuda::grid_for(*this, dx.elements() / width);
    cuda::launch(name, backward_kernel<decltype(width)::value, Index>, grid, stream(), narrowed<Index>(p),
                 dy.as<float>(), argmax.as<std::uint8_t>(), dx.as<float>());
  });
}

}  // namespace motley
