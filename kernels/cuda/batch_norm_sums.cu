// Sums over the rows of a batch, one pass over memory in two phases: strips of rows, then the strips.
#include "kernels/cuda/batch_norm.cuh"

namespace motley {
namespace {

using namespace cuda;

constexpr std::int64_t most_strips = 1024;  // the same on every device: sums depend on it
constexpr int rows_of_a_strip = 8;          // of a thread, at least
constexpr int run_rows = 16;                // of a thread, added up in float32 before float64 takes over
// Of a thread, loaded together. Backward, packs of eight leave registers for one.
constexpr int forward_rows = 4;
template <int width>
constexpr int backward_rows = width == 8 ? 1 : 2;

// Of one thread, per column: sums in float64 and those of the present run.
template <int width>
struct Totals {
  double first[width] = {}, second[width] = {};
  float run_first[width] = {}, run_second[width] = {};

  __device__ void end_run() {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      first[i] += static_cast<double>(run_first[i]);
      second[i] += static_cast<double>(run_second[i]);
      run_first[i] = run_second[i] = 0;
    }
  }
};

// out[0 .. channels) = the sums over the threads of a block, rows first, and over its columns of one channel, where
// it has all of them. In halves, which are powers of two.
template <int width>
__device__ inline void sum_block(const WideRows& wide, const Place<width>& place,
                                 const double (&of_thread)[width], double* out) {
  __shared__ Shared<double[batch_norm_threads * width]> parts;
  const int across = static_cast<int>(blockDim.x), down = static_cast<int>(blockDim.y),
            threads = across * down;
  const int thread = static_cast<int>(threadIdx.y) * across + static_cast<int>(threadIdx.x);
  __syncthreads();  // until all have read an earlier result
#pragma unroll
  for (int i = 0; i < width; ++i) parts[i * threads + thread] = of_thread[i];
  __syncthreads();
  for (int half = down / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.y) < half) {
#pragma unroll
      for (int i = 0; i < width; ++i)
        parts[i * threads + thread] += parts[i * threads + thread + half * across];
    }
    __syncthreads();
  }
  const auto of_column = [&](int column) { return column % width * threads + column / width; };
  if (gridDim.x == 1) {
    for (int half = wide.columns / wide.c / 2; half > 0; half /= 2) {
      for (int i = thread; i < half * wide.c; i += threads)
        parts[of_column(i)] += parts[of_column(i + half * wide.c)];
      __syncthreads();
    }
  }
  const int columns = gridDim.x == 1 ? wide.c : wide.columns - place.of_block;
  for (int i = thread; i < columns && i < across * width; i += threads) out[i] = parts[of_column(i)];
}

struct Strips {
  std::int64_t rows;  // of each
  double* partial;  // [strips, 2, c], or [strips, 2, columns] where a block has not all columns of a channel

  // Row of the first or second sums of a block's strip.
  __device__ double* row(const WideRows& wide, int which) const {
    const std::int64_t length = gridDim.x == 1 ? wide.c : wide.columns;
    return partial + (std::int64_t{blockIdx.y} * 2 + which) * length;
  }
};

// work(rows, row, step) for a thread's rows, `rows` of them at once, which are `step` apart, and the last ones singly;
// end_run() now and then.
template <int rows, class Work, class End>
__device__ inline void for_strip(std::int64_t begin, std::int64_t end, Work work, End end_run) {
  const std::int64_t step = blockDim.y;
  std::int64_t row = begin + threadIdx.y;
  for (int turn = 0; row + (rows - 1) * step < end; row += rows * step) {
    work(std::integral_constant<int, rows>{}, row, step);
    if (++turn == run_rows / rows) {
      end_run();
      turn = 0;
    }
  }
  for (; row < end; row += step) work(std::integral_constant<int, 1>{}, row, step);
  end_run();
}

template <class T, int width>
__global__ void __launch_bounds__(batch_norm_threads, 2)
    sums_kernel(const WideRows wide, const T* x, const Strips strips) {
  const Place<width> place;
  const std::int64_t begin = blockIdx.y * strips.rows,
                     end = begin + strips.rows < wide.rows ? begin + strips.rows : wide.rows;
  Totals<width> totals;
  if (place.column < wide.columns) {
    // Each thread's columns around the first values that it comes to.
    float pivot[width] = {};
    if (begin + threadIdx.y < end)
      unpack(load<width>(x + (begin + threadIdx.y) * wide.columns + place.column), pivot);
    std::int64_t count = 0;
    for_strip<forward_rows>(
        begin, end,
        [&](auto at_once, std::int64_t row, std::int64_t step) {
          constexpr int rows = decltype(at_once)::value;
          count += rows;
          Pack<T, width> in[rows];
#pragma unroll
          for (int r = 0; r < rows; ++r)
            in[r] = load<width>(x + (row + r * step) * wide.columns + place.column);
#pragma unroll
          for (int r = 0; r < rows; ++r) {
#pragma unroll
            for (int i = 0; i < width; ++i) {
              const float difference = to_float(in[r].at[i]) - pivot[i];
              totals.run_first[i] += difference;
              totals.run_second[i] += difference * difference;
            }
          }
        },
        [&] { totals.end_run(); });
    // Moved to 0.
    const auto n = static_cast<double>(count);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const auto p = static_cast<double>(pivot[i]);
      totals.second[i] += p * (2 * totals.first[i] + n * p);
      totals.first[i] += n * p;
    }
    if (blockIdx.y == gridDim.y - 1 && threadIdx.y == 0) {
      const std::int64_t at = wide.rows * wide.columns + place.column;
      float rest[width];
      load_some<true>(x + at, wide.elements - at, rest);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const auto value = static_cast<double>(rest[i]);
        totals.first[i] += value;
        totals.second[i] += value * value;
      }
    }
  }
  sum_block(wide, place, totals.first, strips.row(wide, 0) + place.of_block);
  sum_block(wide, place, totals.second, strips.row(wide, 1) + place.of_block);
}

template <class T, int width, class Rule>
__global__ void __launch_bounds__(batch_norm_threads, 2)
    backward_sums_kernel(const WideRows wide, const Affine a, const Gradients<T> from, const Strips strips) {
  const Place<width> place;
  const std::int64_t begin = blockIdx.y * strips.rows,
                     end = begin + strips.rows < wide.rows ? begin + strips.rows : wide.rows;
  float coefficients[3][width];
  coefficients_of<3>(
      wide, place, [&](int channel, float(&to)[3]) { a.of_channel(channel, to); }, coefficients);
  const auto& [mean, scale, beta] = coefficients;
  Totals<width> totals;
  const auto add = [&](const float(&x)[width], const float(&y)[width], const float(&dy)[width]) {
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const float z = affine(x[i], mean[i], scale[i], beta[i]);
      const float g = Rule::gradient(z, y[i], dy[i]);
      totals.run_first[i] += g;
      totals.run_second[i] += g * (x[i] - mean[i]);
    }
  };
  if (place.column < wide.columns) {
    for_strip<backward_rows<width>>(
        begin, end,
        [&](auto at_once, std::int64_t row, std::int64_t step) {
          constexpr int rows = decltype(at_once)::value;
          Pack<T, width> x[rows], y[rows], dy[rows];
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            const std::int64_t at = (row + r * step) * wide.columns + place.column;
            x[r] = load<width>(from.x + at);
            if constexpr (Rule::reads_y) y[r] = load<width>(from.y + at);
            dy[r] = load<width>(from.dy + at);
          }
#pragma unroll
          for (int r = 0; r < rows; ++r) {
            float values[width], outputs[width] = {}, gradients[width];
            unpack(x[r], values);
            if constexpr (Rule::reads_y) unpack(y[r], outputs);
            unpack(dy[r], gradients);
            add(values, outputs, gradients);
          }
        },
        [&] { totals.end_run(); });
    if (blockIdx.y == gridDim.y - 1 && threadIdx.y == 0) {
      // Elements that are not there have a gradient of 0.
      const std::int64_t at = wide.rows * wide.columns + place.column, left = wide.elements - at;
      float values[width], outputs[width] = {}, gradients[width];
      load_some<true>(from.x + at, left, values);
      if constexpr (Rule::reads_y) load_some<true>(from.y + at, left, outputs);
      load_some<true>(from.dy + at, left, gradients);
      add(values, outputs, gradients);
      totals.end_run();
    }
  }
  sum_block(wide, place, totals.first, strips.row(wide, 0) + place.of_block);
  sum_block(wide, place, totals.second, strips.row(wide, 1) + place.of_block);
}

// Where sums go, and, unless null, what the second is multiplied by and where the gradients of beta and gamma go.
struct Results {
  double* sums = nullptr;
  const float* rstd = nullptr;
  float *dbeta = nullptr, *dgamma = nullptr;
  bool accumulate = false;
};

constexpr int last_threads = 1024;

// Of sums number blockIdx.y: one channel for a thread along x, every 32nd row of the partial sums along y.
__global__ void __launch_bounds__(last_threads)
    add_strips_kernel(std::int64_t strips, int repeats, int c, const double* partial, const Results results) {
  __shared__ Shared<double[last_threads]> parts;
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), which = blockIdx.y;
  double sum = 0;
  if (channel < c) {
    for (std::int64_t strip = threadIdx.y; strip < strips; strip += blockDim.y)
      for (int k = 0; k < repeats; ++k)
        sum += partial[(strip * 2 + which) * repeats * c + std::int64_t{k} * c + channel];
  }
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  parts[at] = sum;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half) parts[at] += parts[at + half * blockDim.x];
  }
  if (threadIdx.y != 0 || channel >= c) return;
  sum = parts[at];
  if (which == 1 && results.rstd != nullptr) sum *= static_cast<double>(results.rstd[channel]);
  results.sums[which * c + channel] = sum;
  float* const gradient = which == 0 ? results.dbeta : results.dgamma;
  if (gradient != nullptr)
    gradient[channel] = static_cast<float>(sum) + (results.accumulate ? gradient[channel] : 0.0f);
}

// The two phases of sums. launch_first(grid, strips) is the first.
template <class First>
void sum_rows(const char* name, CudaBackend& backend, const WideGrid& shape, const Results& results,
              First launch_first) {
  const WideRows& wide = shape.wide;
  const std::int64_t wanted = ceil_div(wide.rows, shape.threads.y * rows_of_a_strip);
  const std::int64_t most = std::max<std::int64_t>(most_strips / shape.across, 1);
  const std::int64_t rows =
      std::max<std::int64_t>(ceil_div(wide.rows, std::clamp<std::int64_t>(wanted, 1, most)), 1);
  const std::int64_t strips = std::max<std::int64_t>(ceil_div(wide.rows, rows), 1);
  const int repeats = shape.across == 1 ? 1 : wide.columns / wide.c;
  auto* const partial = backend.scratch<double>(strips * 2 * repeats * wide.c);
  launch_first(Grid{extents(shape.across, strips), shape.threads}, Strips{rows, partial});
  launch(name, add_strips_kernel,
         {extents(ceil_div(wide.c, warp_size), 2), extents(warp_size, last_threads / warp_size)},
         backend.stream(), strips, repeats, wide.c, partial, results);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::batch_norm_sums(ConstView x, View sums) {
  constexpr auto name = "batch_norm_sums";
  const BatchNormSizes s = check_batch_norm_sums(name, x, sums);
  with_element_type(name, "x", x.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_width<T>(aligned(x.data, 16), [&](auto width) {
      const WideGrid shape = wide_grid(s, width);
      sum_rows(name, *this, shape, {.sums = sums.as<double>()}, [&](const Grid& grid, const Strips& strips) {
        launch(name, sums_kernel<T, decltype(width)::value>, grid, stream(), shape.wide, x.as<T>(), strips);
      });
    });
  });
}

void CudaBackend::batch_norm_backward_sums(Activation activation, ConstView x, ConstView y, ConstView dy,
                                           ConstView mean, ConstView rstd, ConstView gamma, ConstView beta,
                                           View sums, View dgamma, View dbeta, bool accumulate) {
  constexpr auto name = "batch_norm_backward_sums";
  const BatchNormViews views{activation, x, mean, rstd, gamma, beta};
  const BatchNormSizes s = check_batch_norm_backward_sums(name, views, y, dy, sums, dgamma, dbeta);
  const Results results{sums.as<double>(), rstd.as<float>(), dbeta.as<float>(), dgamma.as<float>(),
                        accumulate};
  with_element_type(name, "x", x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const bool whole = aligned(x.data, 16) && aligned(y.data, 16) && aligned(dy.data, 16);
    const Gradients<T> from{x.as<T>(), y.empty() ? nullptr : y.as<T>(), dy.as<T>()};
    with_width<T>(whole, [&](auto width) {
      with_rule(activation, y, [&](auto rule) {
        const WideGrid shape = wide_grid(s, width);
        sum_rows(name, *this, shape, results, [&](const Grid& grid, const Strips& strips) {
          launch(name, backward_sums_kernel<T, decltype(width)::value, decltype(rule)>, grid, stream(),
                 shape.wide, affine_of(views), from, strips);
        });
      });
    });
  });
}

}  // namespace motley
