// Maximum pooling, channels-last: a thread works on one window, or one pixel of the gradient, of neighbouring
// channels.
#include <cmath>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/windows.cuh"

namespace motley {
namespace {

using namespace cuda;

template <class T, int width, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    forward_kernel(Pooling<Index> p, const T* x, T* y, std::uint8_t* argmax) {
  const Index items = p.n * p.out_h * p.out_w * (p.c / width);
  for (auto item = static_cast<Index>(global_thread()); item < items;
       item += static_cast<Index>(global_threads())) {
    const auto [window, channel, sample, oh, ow] = place_of<width>(item, p.c, p.out_h, p.out_w);
    const Index top = oh * p.stride_h - p.pad_h, left = ow * p.stride_w - p.pad_w;
    const Range<Index> rows = inside(top, p.kernel_h, p.h), columns = inside(left, p.kernel_w, p.w);
    const T* const image = x + sample * p.h * p.w * p.c + channel;

    float best[width];
    Pack<std::uint8_t, width> place;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      best[i] = -INFINITY;
      place.at[i] = static_cast<std::uint8_t>(rows.begin * p.kernel_w + columns.begin);
    }
    for (Index r = rows.begin; r < rows.end; ++r) {
      for (Index k = columns.begin; k < columns.end; ++k) {
        float value[width];
        load_floats(image + ((top + r) * p.w + left + k) * p.c, value);
        const auto here = static_cast<std::uint8_t>(r * p.kernel_w + k);
#pragma unroll
        for (int i = 0; i < width; ++i) {
          // A NaN wins over everything, a later one over an earlier one, as in PyTorch.
          const bool wins = value[i] > best[i] || value[i] != value[i];
          best[i] = wins ? value[i] : best[i];
          place.at[i] = wins ? here : place.at[i];
        }
      }
    }
    const Index at = window * p.c + channel;
    store_floats(y + at, best);
    store<width>(argmax + at, place);
  }
}

// Every element of dx gathers from the windows that cover it, so that no two threads write one place and the
// order of additions is fixed.
template <class T, int width, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    backward_kernel(Pooling<Index> p, const T* dy, const std::uint8_t* argmax, T* dx) {
  const Index items = p.n * p.h * p.w * (p.c / width);
  for (auto item = static_cast<Index>(global_thread()); item < items;
       item += static_cast<Index>(global_threads())) {
    const auto [pixel, channel, sample, h, w] = place_of<width>(item, p.c, p.h, p.w);
    const Range<Index> rows = covering(h, p.kernel_h, p.stride_h, p.pad_h, p.out_h);
    const Range<Index> columns = covering(w, p.kernel_w, p.stride_w, p.pad_w, p.out_w);

    float sum[width];
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] = 0;
    for (Index oh = rows.begin; oh < rows.end; ++oh) {
      for (Index ow = columns.begin; ow < columns.end; ++ow) {
        const Index at = ((sample * p.out_h + oh) * p.out_w + ow) * p.c + channel;
        const auto place = load<width>(argmax + at);
        float gradient[width];
        load_floats(dy + at, gradient);
        const Index here = (h + p.pad_h - oh * p.stride_h) * p.kernel_w + w + p.pad_w - ow * p.stride_w;
#pragma unroll
        for (int i = 0; i < width; ++i) sum[i] += place.at[i] == here ? gradient[i] : 0.0f;
      }
    }
    store_floats(dx + pixel * p.c + channel, sum);
  }
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) {
  constexpr auto name = "max_pool2d_forward";
  const auto p = pooling_of(pool, check_max_pool2d(name, pool, {"x", x}, {"y", y}, argmax));
  choose_pooling(name, p, x, y, argmax, [&](auto type, auto width, auto index) {
    using T = decltype(type);
    using Index = decltype(index);
    const Grid grid = grid_for(*this, y.elements() / width);
    launch(name, forward_kernel<T, decltype(width)::value, Index>, grid, stream(), narrowed<Index>(p),
           x.as<T>(), y.as<T>(), argmax.as<std::uint8_t>());
  });
}

void CudaBackend::max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) {
  constexpr auto name = "max_pool2d_backward";
  const auto p = pooling_of(pool, check_max_pool2d(name, pool, {"dx", dx}, {"dy", dy}, argmax));
  choose_pooling(name, p, dx, dy, argmax, [&](auto type, auto width, auto index) {
    using T = decltype(type);
    using Index = decltype(index);
    const Grid grid = grid_for(*this, dx.elements() / width);
    launch(name, backward_kernel<T, decltype(width)::value, Index>, grid, stream(), narrowed<Index>(p),
           dy.as<T>(), argmax.as<std::uint8_t>(), dx.as<T>());
  });
}

}  // namespace motley
