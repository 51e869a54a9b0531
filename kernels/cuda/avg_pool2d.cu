// Average pooling, channels-last. A thread works on one window, or one pixel of the gradient, of neighbouring
// channels; the global pool, whose windows are few and large, shares each among the threads of a block.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/pixel_sums.cuh"
#include "kernels/cuda/windows.cuh"

namespace motley {
namespace {

using namespace cuda;

// sum[i] += x[first], x[first + step], ...: `count` elements.
template <int width, class Index, class T>
__device__ inline void add_run(const T* x, Index count, Index step, float (&sum)[width]) {
#pragma unroll 1  // windows are small, and registers would spill
  for (Index k = 0; k < count; ++k) {
    float value[width];
    load_floats(x + k * step, value);
#pragma unroll
    for (int i = 0; i < width; ++i) sum[i] += value[i];
  }
}

template <int width, class T>
__device__ inline void store_scaled(float (&sum)[width], float factor, T* to) {
#pragma unroll
  for (float& value : sum) value *= factor;
  store_floats(to, sum);
}

template <class T, int width, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    forward_kernel(Pooling<Index> p, float factor, const T* x, T* y) {
  const Index items = p.n * p.out_h * p.out_w * (p.c / width);
  for (auto item = static_cast<Index>(global_thread()); item < items;
       item += static_cast<Index>(global_threads())) {
    const auto [window, channel, sample, oh, ow] = place_of<width>(item, p.c, p.out_h, p.out_w);
    const Index top = oh * p.stride_h - p.pad_h, left = ow * p.stride_w - p.pad_w;
    const Range<Index> rows = inside(top, p.kernel_h, p.h), columns = inside(left, p.kernel_w, p.w);
    const T* const image = x + sample * p.h * p.w * p.c + channel;
    float sum[width] = {};
    for (Index r = rows.begin; r < rows.end; ++r) {
      add_run(image + ((top + r) * p.w + left + columns.begin) * p.c, columns.end - columns.begin, p.c, sum);
    }
    store_scaled(sum, factor, y + window * p.c + channel);
  }
}

// Every element of dx gathers from the windows that cover it, so that no two threads write one place and the
// order of additions is fixed.
template <class T, int width, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    backward_kernel(Pooling<Index> p, float factor, const T* dy, T* dx) {
  const Index items = p.n * p.h * p.w * (p.c / width);
  for (auto item = static_cast<Index>(global_thread()); item < items;
       item += static_cast<Index>(global_threads())) {
    const auto [pixel, channel, sample, h, w] = place_of<width>(item, p.c, p.h, p.w);
    const Range<Index> rows = covering(h, p.kernel_h, p.stride_h, p.pad_h, p.out_h);
    const Range<Index> columns = covering(w, p.kernel_w, p.stride_w, p.pad_w, p.out_w);
    float sum[width] = {};
    for (Index oh = rows.begin; oh < rows.end; ++oh) {
      add_run(dy + ((sample * p.out_h + oh) * p.out_w + columns.begin) * p.c + channel,
              columns.end - columns.begin, p.c, sum);
    }
    store_scaled(sum, factor, dx + pixel * p.c + channel);
  }
}

// The term of the global pool: the pixel itself.
template <class T, int width>
struct Pixel {
  const T* x;
  __device__ Pixel at_sample(std::int64_t sample, std::int64_t pixels, std::int64_t channels,
                             std::int64_t channel) const {
    return {x + sample * pixels * channels + channel};
  }
  __device__ void operator()(std::int64_t at, float (&value)[width]) const { load_floats(x + at, value); }
};

float factor_of(const Pool2d& pool) {
  return 1.0f / static_cast<float>(pool.kernel_h * pool.kernel_w);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::avg_pool2d_forward(const Pool2d& pool, ConstView x, View y) {
  constexpr auto name = "avg_pool2d_forward";
  const PoolingSizes s = check_avg_pool2d(name, pool, {"x", x}, {"y", y});
  if (y.elements() == 0) return;
  const auto p = pooling_of(pool, s);
  const bool global = pool.kernel_h == s.h && pool.kernel_w == s.w && s.out_h == 1 && s.out_w == 1 &&
                      pool.pad_h == 0 && pool.pad_w == 0;
  choose_pooling(name, p, x, y, {}, [&](auto type, auto width, auto index) {
    using T = decltype(type);
    using Index = decltype(index);
    constexpr int pack = decltype(width)::value;
    if (global) {
      return pixel_sums<T, pack>(name, *this, Pixel<T, pack>{x.as<T>()}, s.n, s.h * s.w, s.c, factor_of(pool),
                                 y.as<T>());
    }
    launch(name, forward_kernel<T, pack, Index>, grid_for(*this, y.elements() / pack), stream(),
           narrowed<Index>(p), factor_of(pool), x.as<T>(), y.as<T>());
  });
}

void CudaBackend::avg_pool2d_backward(const Pool2d& pool, ConstView dy, View dx) {
  constexpr auto name = "avg_pool2d_backward";
  const auto p = pooling_of(pool, check_avg_pool2d(name, pool, {"dx", dx}, {"dy", dy}));
  choose_pooling(name, p, dx, dy, {}, [&](auto type, auto width, auto index) {
    using T = decltype(type);
    using Index = decltype(index);
    constexpr int pack = decltype(width)::value;
    launch(name, backward_kernel<T, pack, Index>, grid_for(*this, dx.elements() / pack), stream(),
           narrowed<Index>(p), factor_of(pool), dy.as<T>(), dx.as<T>());
  });
}

}  // namespace motley
