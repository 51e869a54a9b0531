// Batch normalisation and its gradient where statistics and sums are known, one pass over memory each.
#include "kernels/cuda/batch_norm.cuh"

namespace motley {
namespace {

using namespace cuda;

constexpr int rows_at_once = 2;  // of a thread, whose loads all come before the first store

template <int rows_, bool part_>
struct Rows {
  static constexpr int rows = rows_;
  static constexpr bool part = part_;
};

// work(Rows, first, step) for a thread's rows, some at once: first, first + step, ... The elements behind the last
// wide row are a part of row number wide.rows.
template <class Work>
__device__ inline void for_wide_rows(const WideRows& wide, int column, Work work) {
  if (column >= wide.columns) return;
  const std::int64_t step = std::int64_t{gridDim.y} * blockDim.y;
  std::int64_t row = std::int64_t{blockIdx.y} * blockDim.y + threadIdx.y;
  for (; row + (rows_at_once - 1) * step < wide.rows; row += rows_at_once * step)
    work(Rows<rows_at_once, false>{}, row, step);
  for (; row < wide.rows; row += step) work(Rows<1, false>{}, row, step);
  if (blockIdx.y == 0 && threadIdx.y == 0) work(Rows<1, true>{}, wide.rows, step);
}

template <class T>
struct Forward {
  const T *x, *residual;  // no residual: null
  T* y;
};

template <class T, int width, class Function, bool residual>
__global__ void __launch_bounds__(batch_norm_threads, 2)
    forward_kernel(const WideRows wide, const Affine a, const Forward<T> f) {
  const Place<width> place;
  float coefficients[3][width];
  coefficients_of<3>(
      wide, place, [&](int channel, float(&to)[3]) { a.of_channel(channel, to); }, coefficients);
  const auto& [mean, scale, beta] = coefficients;
  for_wide_rows(wide, place.column, [&](auto some, std::int64_t first, std::int64_t step) {
    constexpr bool part = decltype(some)::part;
    constexpr int rows = decltype(some)::rows;
    // y may be x or residual, so that the compiler moves no load across a store.
    float x[rows][width], added[rows][width];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const std::int64_t at = (first + r * step) * wide.columns + place.column;
      load_some<part>(f.x + at, wide.elements - at, x[r]);
      if constexpr (residual) load_some<part>(f.residual + at, wide.elements - at, added[r]);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const std::int64_t at = (first + r * step) * wide.columns + place.column;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        float z = affine(x[r][i], mean[i], scale[i], beta[i]);
        if constexpr (residual) z += added[r][i];
        x[r][i] = Function::value(z);
      }
      store_some<part>(f.y + at, wide.elements - at, x[r]);
    }
  });
}

template <class T>
struct Backward {
  Gradients<T> from;
  const double* sums;  // [2, c]
  float one_by_count;
  T *dx, *dresidual;  // the latter may be null
};

template <class T, int width, class Rule>
__global__ void __launch_bounds__(batch_norm_threads, 2)
    backward_kernel(const WideRows wide, const Affine a, const Backward<T> b) {
  const Place<width> place;
  // dx = scale * (g - level - (x - mean) * slope)
  float coefficients[5][width];
  coefficients_of<5>(
      wide, place,
      [&](int channel, float(&to)[5]) {
        a.of_channel(channel, to);
        to[3] = static_cast<float>(b.sums[channel]) * b.one_by_count;
        to[4] = static_cast<float>(b.sums[wide.c + channel]) * b.one_by_count * a.rstd[channel];
      },
      coefficients);
  const auto& [mean, scale, beta, level, slope] = coefficients;
  for_wide_rows(wide, place.column, [&](auto some, std::int64_t first, std::int64_t step) {
    constexpr bool part = decltype(some)::part;
    constexpr int rows = decltype(some)::rows;
    float x[rows][width], y[rows][width] = {}, dy[rows][width];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const std::int64_t at = (first + r * step) * wide.columns + place.column;
      load_some<part>(b.from.x + at, wide.elements - at, x[r]);
      if constexpr (Rule::reads_y) load_some<part>(b.from.y + at, wide.elements - at, y[r]);
      load_some<part>(b.from.dy + at, wide.elements - at, dy[r]);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const std::int64_t at = (first + r * step) * wide.columns + place.column;
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float z = affine(x[r][i], mean[i], scale[i], beta[i]);
        dy[r][i] = Rule::gradient(z, y[r][i], dy[r][i]);
        x[r][i] = scale[i] * (dy[r][i] - level[i] - (x[r][i] - mean[i]) * slope[i]);
      }
      store_some<part>(b.dx + at, wide.elements - at, x[r]);
      if (b.dresidual != nullptr) store_some<part>(b.dresidual + at, wide.elements - at, dy[r]);
    }
  });
}

template <class Kernel, class... Arguments>
void launch_on_rows(const char* name, const CudaBackend& backend, Kernel kernel, const WideGrid& shape,
                    Arguments... arguments) {
  if (shape.wide.elements == 0) return;
  const std::int64_t most =
      std::max<std::int64_t>(8 * std::int64_t{backend.multiprocessors()} / shape.across, 1);
  const std::int64_t wanted = ceil_div(shape.wide.rows, shape.threads.y * rows_at_once);
  launch(name, kernel, {extents(shape.across, std::clamp<std::int64_t>(wanted, 1, most)), shape.threads},
         backend.stream(), shape.wide, arguments...);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::batch_norm_forward(Activation activation, ConstView x, ConstView residual, ConstView mean,
                                     ConstView rstd, ConstView gamma, ConstView beta, View y) {
  constexpr auto name = "batch_norm_forward";
  const BatchNormViews views{activation, x, mean, rstd, gamma, beta};
  const BatchNormSizes s = check_batch_norm_forward(name, views, residual, y);
  with_element_type(name, "x", x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const bool whole = aligned(x.data, 16) && aligned(residual.data, 16) && aligned(y.data, 16);
    const Forward<T> f{x.as<T>(), residual.empty() ? nullptr : residual.as<T>(), y.as<T>()};
    with_width<T>(whole, [&](auto wide) {
      constexpr int width = decltype(wide)::value;
      const auto run = [&](auto kernel) {
        launch_on_rows(name, *this, kernel, wide_grid(s, width), affine_of(views), f);
      };
      if (activation == Activation::swish) {
        run(forward_kernel<T, width, Swish, false>);
      } else if (activation == Activation::relu) {
        run(f.residual == nullptr ? forward_kernel<T, width, Relu, false>
                                  : forward_kernel<T, width, Relu, true>);
      } else {
        run(f.residual == nullptr ? forward_kernel<T, width, Identity, false>
                                  : forward_kernel<T, width, Identity, true>);
      }
    });
  });
}

void CudaBackend::batch_norm_backward(Activation activation, ConstView x, ConstView y, ConstView dy,
                                      ConstView mean, ConstView rstd, ConstView gamma, ConstView beta,
                                      ConstView sums, double count, View dx, View dresidual) {
  constexpr auto name = "batch_norm_backward";
  const BatchNormViews views{activation, x, mean, rstd, gamma, beta};
  const BatchNormSizes s = check_batch_norm_backward(name, views, y, dy, sums, count, dx, dresidual);
  with_element_type(name, "x", x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const bool whole = aligned(x.data, 16) && aligned(y.data, 16) && aligned(dy.data, 16) &&
                       aligned(dx.data, 16) && aligned(dresidual.data, 16);
    const Backward<T> b{{x.as<T>(), y.empty() ? nullptr : y.as<T>(), dy.as<T>()},
                        sums.as<double>(),
                        static_cast<float>(1 / count),
                        dx.as<T>(),
                        dresidual.empty() ? nullptr : dresidual.as<T>()};
    with_width<T>(whole, [&](auto width) {
      with_rule(activation, y, [&](auto rule) {
        launch_on_rows(name, *this, backward_kernel<T, decltype(width)::value, decltype(rule)>,
                       wide_grid(s, width), affine_of(views), b);
      });
    });
  });
}

}  // namespace motley
