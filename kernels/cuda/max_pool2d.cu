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
  const Index packs = p.c / width, items = p.n * p.out_h * p.out_w * packs;
  for (auto item = static_cast<Index>(global_thread()); item < items;
       item += static_cast<Index>(global_threads())) {
    const Index window = item / packs, channel = (item - window * packs) * width;
    const Index row = window / p.out_w, ow = window - row * p.out_w;
    const Index sample = row / p.out_h, oh = row - sample * p.out_h;
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
  const Index packs = p.c / width, items = p.n * p.h * p.w * packs;
  for (auto item = static_cast<Index>(global_thread()); item < items;
       item += static_cast<Index>(global_threads())) {
    const Index pixel = item / packs, channel = (item - pixel * packs) * width;
    const Index row = pixel / p.w, w = pixel - row * p.w;
    const Index sample = row / p.h, h = row - sample * p.h;
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

// launch_as(type, width, index): the widest accesses and the narrowest index that fit.
template <class Launch>
void choose(const char* name, const Pooling<std::int64_t>& p, const ConstView& x, const ConstView& y,
            const ConstView& argmax, Launch launch_as) {
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int widest = widest_pack<T>;
    const bool whole = rows_fit<widest>(p.c, x.as<T>(), y.as<T>(), argmax.as<std::uint8_t>());
    with_index(std::max({x.elements(), y.elements(), p.stride_h, p.stride_w}), [&](auto index) {
      if (whole) return launch_as(type, std::integral_constant<int, widest>{}, index);
      launch_as(type, std::integral_constant<int, 1>{}, index);
    });
  });
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) {
  constexpr auto name = "max_pool2d_forward";
  const auto p = pooling_of(pool, check_max_pool2d(name, pool, {"x", x}, {"y", y}, argmax));
  choose(name, p, x, y, argmax, [&](auto type, auto width, auto index) {
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
  choose(name, p, dx, dy, argmax, [&](auto type, auto width, auto index) {
    using T = decltype(type);
    using Index = decltype(index);
    const Grid grid = grid_for(*this, dx.elements() / width);
    launch(name, backward_kernel<T, decltype(width)::value, Index>, grid, stream(), narrowed<Index>(p),
           dy.as<T>(), argmax.as<std::uint8_t>(), dx.as<T>());
  });
}

}  // namespace motley
