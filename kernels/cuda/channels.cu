// Operations on the channels of channels-last images: copying some of them, shuffling, scaling each. A thread
// takes neighbouring channels of a pixel by one access, as wide as all addresses allow.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/pixel_sums.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using namespace cuda;

// launch_as(width): 16-byte accesses, those of 4 elements of half types, or single elements.
template <class T, class Fits, class Launch>
void choose_width(Fits fits, Launch launch_as) {
  constexpr int widest = widest_pack<T>;
  if (fits(std::integral_constant<int, widest>{})) return launch_as(std::integral_constant<int, widest>{});
  if constexpr (widest > 4) {
    if (fits(std::integral_constant<int, 4>{})) return launch_as(std::integral_constant<int, 4>{});
  }
  launch_as(std::integral_constant<int, 1>{});
}

// --- Copy -------------------------------------------------------------------------------------------------

// Rows are pixels: x and y begin at the first channel that is copied.
template <class T, int width, bool accumulate>
__global__ void __launch_bounds__(row_threads)
    copy_kernel(std::int64_t pixels, std::int64_t packs, std::int64_t x_channels, std::int64_t y_channels,
                const T* x, T* y) {
  for_rows(pixels, packs, [&](std::int64_t pixel, std::int64_t pack) {
    const T* const from = x + pixel * x_channels + pack * width;
    T* const to = y + pixel * y_channels + pack * width;
    if constexpr (accumulate) {
      float term[width], sum[width];
      load_floats(from, term);
      load_floats(to, sum);
#pragma unroll
      for (int i = 0; i < width; ++i) sum[i] += term[i];
      store_floats(to, sum);
    } else {
      store<width>(to, load<width>(from));
    }
  });
}

// --- Shuffle ----------------------------------------------------------------------------------------------

// Writes packs, and reads the elements of each one by one: those of a warp are neighbours within their groups.
template <class T, int width, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    shuffle_kernel(Index packs, Index channel_packs, Index groups, Index group_size, const T* x, T* y) {
  for (auto p = static_cast<Index>(global_thread()); p < packs; p += static_cast<Index>(global_threads())) {
    const Index pixel = p / channel_packs, first = (p - pixel * channel_packs) * width;
    const T* const from = x + std::int64_t{pixel} * channel_packs * width;
    Index place = first / groups, group = first - place * groups;
    Pack<T, width> out;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      out.at[i] = from[group * group_size + place];
      if (++group == groups) group = 0, ++place;
    }
    store<width>(y + std::int64_t{p} * width, out);
  }
}

// --- Scale ------------------------------------------------------------------------------------------------

template <class T, int width, class Index>
__global__ void __launch_bounds__(elementwise_threads)
    scale_kernel(Index packs, Index channel_packs, Index sample_packs, const T* x, const T* s, T* y) {
  for (auto p = static_cast<Index>(global_thread()); p < packs; p += static_cast<Index>(global_threads())) {
    const Index sample = p / sample_packs, channel_pack = p % channel_packs;
    float value[width], factor[width];
    load_floats(x + std::int64_t{p} * width, value);
    load_floats(s + (std::int64_t{sample} * channel_packs + channel_pack) * width, factor);
#pragma unroll
    for (int i = 0; i < width; ++i) value[i] *= factor[i];
    store_floats(y + std::int64_t{p} * width, value);
  }
}

// The term of ds, which writes dx on its way.
template <class T, int width>
struct ScaleBackward {
  const T* x;
  const T* s;
  const T* dy;
  T* dx;
  __device__ ScaleBackward at_sample(std::int64_t sample, std::int64_t pixels, std::int64_t channels,
                                     std::int64_t channel) const {
    const std::int64_t at = sample * pixels * channels + channel;
    return {x + at, s + sample * channels + channel, dy + at, dx + at};
  }
  __device__ void operator()(std::int64_t at, float (&term)[width]) const {
    float input[width], gradient[width], factor[width];
    load_floats(x + at, input);
    load_floats(dy + at, gradient);
    load_floats(s, factor);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      term[i] = gradient[i] * input[i];
      gradient[i] *= factor[i];
    }
    store_floats(dx + at, gradient);
  }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::copy_channels(ConstView x, std::int64_t from, View y, std::int64_t to, std::int64_t count,
                                bool accumulate) {
  constexpr auto name = "copy_channels";
  const ImageSizes s = check_copy_channels(name, x, from, y, to, count);
  const std::int64_t x_channels = x.shape[3], pixels = s.n * s.pixels;
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* const source = x.as<T>() + from;
    T* const target = y.as<T>() + to;
    const auto fits = [&](auto width) {
      return count % width == 0 && x_channels % width == 0 && s.c % width == 0 &&
             packs_fit<decltype(width)::value>(source, target);
    };
    choose_width<T>(fits, [&](auto width) {
      constexpr int pack = decltype(width)::value;
      launch(name, accumulate ? copy_kernel<T, pack, true> : copy_kernel<T, pack, false>,
             row_grid(*this, pixels, count / pack), stream(), pixels, count / pack, x_channels, s.c, source,
             target);
    });
  });
}

void CudaBackend::channel_shuffle(std::int64_t groups, ConstView x, View y) {
  constexpr auto name = "channel_shuffle";
  const ImageSizes s = check_channel_shuffle(name, groups, x, y);
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto fits = [&](auto width) { return rows_fit<decltype(width)::value>(s.c, y.as<T>()); };
    choose_width<T>(fits, [&](auto width) {
      constexpr int pack = decltype(width)::value;
      const std::int64_t packs = x.elements() / pack;
      with_index(x.elements(), [&](auto index) {
        using Index = decltype(index);
        launch(name, shuffle_kernel<T, pack, Index>, grid_for(*this, packs), stream(), packs, s.c / pack,
               groups, s.c / groups, x.as<T>(), y.as<T>());
      });
    });
  });
}

void CudaBackend::scale_channels_forward(ConstView x, ConstView s, View y) {
  constexpr auto name = "scale_channels_forward";
  const ImageSizes sizes = check_scale_channels_forward(name, x, s, y);
  with_element_type(name, "x", x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto fits = [&](auto width) {
      return rows_fit<decltype(width)::value>(sizes.c, x.as<T>(), s.as<T>(), y.as<T>());
    };
    choose_width<T>(fits, [&](auto width) {
      constexpr int pack = decltype(width)::value;
      const std::int64_t packs = x.elements() / pack;
      with_index(packs, [&](auto index) {
        using Index = decltype(index);
        launch(name, scale_kernel<T, pack, Index>, grid_for(*this, packs), stream(), packs, sizes.c / pack,
               sizes.pixels * sizes.c / pack, x.as<T>(), s.as<T>(), y.as<T>());
      });
    });
  });
}

void CudaBackend::scale_channels_backward(ConstView x, ConstView s, ConstView dy, View dx, View ds) {
  constexpr auto name = "scale_channels_backward";
  const ImageSizes sizes = check_scale_channels_backward(name, x, s, dy, dx, ds);
  if (ds.elements() == 0) return;
  with_element_type(name, "dy", dy.dtype, [&](auto type) {
    using T = decltype(type);
    const auto fits = [&](auto width) {
      return rows_fit<decltype(width)::value>(sizes.c, x.as<T>(), s.as<T>(), dy.as<T>(), dx.as<T>(),
                                              ds.as<T>());
    };
    choose_width<T>(fits, [&](auto width) {
      constexpr int pack = decltype(width)::value;
      const ScaleBackward<T, pack> term{x.as<T>(), s.as<T>(), dy.as<T>(), dx.as<T>()};
      pixel_sums<T, pack>(name, *this, term, sizes.n, sizes.pixels, sizes.c, 1.0f, ds.as<T>());
    });
  });
}

}  // namespace motley
