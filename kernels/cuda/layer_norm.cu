// Layer normalisation of dropout(x) + residual: Ba, Kiros, Hinton, "Layer normalization", 2016. One pass over
// memory each way: a row is held in registers between the sums over it and the use of them.
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using namespace cuda;

// A row belongs to blockDim.x threads, its pack number k * blockDim.x + threadIdx.x to the k-th turn of a
// thread. `turns` packs of a thread fit into its registers; 0 stands for any number, of which none is held.
// Blocks of one warp in x have several rows in y.
template <int turns, class F>
__device__ inline void for_packs(int packs, F f) {
  if constexpr (turns > 0) {
#pragma unroll
    for (int k = 0; k < turns; ++k) {
      const int pack = k * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      if (pack < packs) f(k, pack);
    }
  } else {
    for (int pack = static_cast<int>(threadIdx.x); pack < packs; pack += static_cast<int>(blockDim.x))
      f(0, pack);
  }
}

// Two such blocks fit on a multiprocessor when a backward thread has 168 registers, which hold all it needs.
constexpr int most_forward_threads = 256, most_backward_threads = 192;
// Elements of a row that a thread holds at most. Backward there are as many again of dgamma and of dbeta.
constexpr int most_held_forward = 32, most_held_backward = 24;
constexpr int warp_rows = 4;  // rows of a block whose rows have one warp each

template <class T>
struct Forward {
  Dropout dropout;
  std::int64_t rows, seq;
  int length;
  float eps;
  const T* x;
  const T* residual;  // may be null
  T* sum;
  T* y;
  float* mean;
  float* rstd;
};

template <class T, int width, int turns>
__global__ void __launch_bounds__(most_forward_threads, 1)
    forward_kernel(const Forward<T> a, const float* __restrict__ gammas, const float* __restrict__ betas) {
  constexpr bool holds = turns > 0;
  constexpr int room = holds ? turns : 1;
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= a.rows) return;
  const std::int64_t at = row * a.length, sample = row / a.seq, first = (row - sample * a.seq) * a.length;
  const int packs = a.length / width;
  const float length = static_cast<float>(a.length);

  // All loads come before the first store: sum may be x or residual, so that none can be moved across it.
  Pack<T, width> x[room], residual[room];
  const auto fetch = [&](int k, int pack) {
    x[k] = load<width>(a.x + at + pack * width);
    if (a.residual != nullptr) residual[k] = load<width>(a.residual + at + pack * width);
  };
  float held[room][width];
  float total = 0;
  const auto add_up = [&](int k, int pack) {
    unpack(x[k], held[k]);
    a.dropout.apply(sample, first + pack * width, held[k]);
#pragma unroll
    for (int i = 0; i < width; ++i) {
      if (a.residual != nullptr) held[k][i] += to_float(residual[k].at[i]);
      held[k][i] = to_float(from_float<T>(held[k][i]));
      total += held[k][i];
    }
    store_floats(a.sum + at + pack * width, held[k]);
  };
  if constexpr (holds) {
    for_packs<turns>(packs, fetch);
    for_packs<turns>(packs, add_up);
  } else {
    for_packs<0>(packs, [&](int k, int pack) {
      fetch(k, pack);
      add_up(k, pack);
    });
  }
  const auto recall = [&](int k, int pack) {
    if constexpr (!holds) load_floats(a.sum + at + pack * width, held[k]);
  };

  const float mean = block_sum(total) / length;
  float squares = 0;
  for_packs<turns>(packs, [&](int k, int pack) {
    recall(k, pack);
#pragma unroll
    for (int i = 0; i < width; ++i) squares += (held[k][i] - mean) * (held[k][i] - mean);
  });
  const float rstd = 1.0f / sqrtf(block_sum(squares) / length + a.eps);
  for_packs<turns>(packs, [&](int k, int pack) {
    recall(k, pack);
    float gamma[width], beta[width];
    load_floats(gammas + pack * width, gamma);
    load_floats(betas + pack * width, beta);
#pragma unroll
    for (int i = 0; i < width; ++i) gamma[i] = (held[k][i] - mean) * rstd * gamma[i] + beta[i];
    store_floats(a.y + at + pack * width, gamma);
  });
  if (threadIdx.x == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
}

template <class T>
struct Backward {
  Dropout dropout;
  std::int64_t rows, seq, rows_per_block;
  int length;
  const T* dy;
  const T* sum;
  const float* mean;
  const float* rstd;
  T* dsum;         // null: nobody needs it
  T* dx;           // may be null
  float* partial;  // [blocks, 2, length]: dgamma and dbeta of the rows of each block
};

struct RowSums {
  float slope, product;
  __device__ RowSums operator+(RowSums other) const { return {slope + other.slope, product + other.product}; }
};

template <class T, int width, int turns>
__global__ void __launch_bounds__(most_backward_threads, 2)
    backward_kernel(const Backward<T> a, const float* __restrict__ gammas) {
  constexpr bool holds = turns > 0;
  constexpr int room = holds ? turns : 1;
  const std::int64_t begin = blockIdx.x * a.rows_per_block;
  const std::int64_t end = begin + a.rows_per_block < a.rows ? begin + a.rows_per_block : a.rows;
  const int packs = a.length / width;
  const float length = static_cast<float>(a.length);
  float* const partial = a.partial + std::int64_t{blockIdx.x} * 2 * a.length;
  float dgamma[room][width] = {}, dbeta[room][width] = {};

  for (std::int64_t row = begin + threadIdx.y; row < end; row += blockDim.y) {
    const std::int64_t at = row * a.length, sample = row / a.seq, first = (row - sample * a.seq) * a.length;
    const float mean = a.mean[row], rstd = a.rstd[row];
    Pack<T, width> dy[room], sum[room];
    const auto fetch = [&](int k, int pack) {
      dy[k] = load<width>(a.dy + at + pack * width);
      sum[k] = load<width>(a.sum + at + pack * width);
    };
    if constexpr (holds) for_packs<turns>(packs, fetch);
    RowSums sums{0, 0};
    for_packs<turns>(packs, [&](int k, int pack) {
      if constexpr (!holds) {
        fetch(k, pack);
        if (row > begin) {  // the block's own place in memory takes the place of registers
          load_floats(partial + pack * width, dgamma[k]);
          load_floats(partial + a.length + pack * width, dbeta[k]);
        } else {
#pragma unroll
          for (int i = 0; i < width; ++i) dgamma[k][i] = dbeta[k][i] = 0;
        }
      }
      float gamma[width];
      load_floats(gammas + pack * width, gamma);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float gradient = to_float(dy[k].at[i]), normal = (to_float(sum[k].at[i]) - mean) * rstd;
        dgamma[k][i] += gradient * normal;
        dbeta[k][i] += gradient;
        sums.slope += gradient * gamma[i];
        sums.product += gradient * gamma[i] * normal;
      }
      if constexpr (!holds) {
        store_floats(partial + pack * width, dgamma[k]);
        store_floats(partial + a.length + pack * width, dbeta[k]);
      }
    });
    sums = block_sum(sums);
    const float mean_slope = sums.slope / length, mean_product = sums.product / length;
    for_packs<turns>(packs, [&](int k, int pack) {
      if constexpr (!holds) fetch(k, pack);
      float gradient[width];
      load_floats(gammas + pack * width, gradient);
#pragma unroll
      for (int i = 0; i < width; ++i) {
        const float slope = to_float(dy[k].at[i]) * gradient[i];
        const float normal = (to_float(sum[k].at[i]) - mean) * rstd;
        gradient[i] = to_float(from_float<T>(rstd * (slope - mean_slope - normal * mean_product)));
      }
      if (a.dsum != nullptr) store_floats(a.dsum + at + pack * width, gradient);
      if (a.dx == nullptr) return;
      a.dropout.apply(sample, first + pack * width, gradient);
      store_floats(a.dx + at + pack * width, gradient);
    });
  }
  if constexpr (holds) {
    // Of rows side by side in the block the sums are added in order, in shared memory; the last one writes.
    float* const shared = dynamic_shared<float>();
    for (unsigned turn = 0; turn < blockDim.y; ++turn) {
      if (threadIdx.y == turn) {
        float* const to = turn + 1 < blockDim.y ? shared : partial;
        for_packs<turns>(packs, [&](int k, int pack) {
          if (turn > 0) {
            float before[width];
            load_floats(shared + pack * width, before);
#pragma unroll
            for (int i = 0; i < width; ++i) dgamma[k][i] += before[i];
            load_floats(shared + a.length + pack * width, before);
#pragma unroll
            for (int i = 0; i < width; ++i) dbeta[k][i] += before[i];
          }
          store_floats(to + pack * width, dgamma[k]);
          store_floats(to + a.length + pack * width, dbeta[k]);
        });
      }
      if (turn + 1 < blockDim.y) __syncthreads();
    }
  }
}

// work(turns, threads of a block), `turns` as a constant, for rows of `packs` packs: as few warps for a row
// as can hold it, and then as few turns.
template <int width, int most_held, class F>
void with_turns(std::int64_t packs, int most_threads, F work) {
  // Elements that have each an access, and so an address, of its own take more registers.
  constexpr int few = 8 / width, some = width == 1 ? few : 16 / width,
                most = width == 1 ? few : most_held / width;
  const std::int64_t warps = std::max<std::int64_t>(1, ceil_div(packs, most * warp_size));
  const std::int64_t threads = warps * warp_size, turns = ceil_div(packs, threads);
  const dim3 block = warps == 1 ? dim3(warp_size, warp_rows) : extents(threads);
  if (threads > most_threads) {
    work(std::integral_constant<int, 0>{}, extents(most_threads));
  } else if (turns <= few) {
    work(std::integral_constant<int, few>{}, block);
  } else if (turns <= some) {
    work(std::integral_constant<int, some>{}, block);
  } else {
    work(std::integral_constant<int, most>{}, block);
  }
}

constexpr std::int64_t most_width = std::numeric_limits<int>::max() / 2;

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::add_layer_norm_forward(const DropoutMask& mask, ConstView x, ConstView residual,
                                         ConstView gamma, ConstView beta, double eps, View sum, View y,
                                         View mean, View rstd) {
  constexpr auto name = "add_layer_norm_forward";
  const LayerNormSizes s = check_add_layer_norm_forward(name, x, residual, gamma, beta, sum, y, mean, rstd);
  MOTLEY_CHECK(s.width <= most_width);
  const Dropout drop = dropout_of(name, mask);
  with_element_type(name, "x", x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Forward<T> a{drop,
                       s.rows(),
                       s.seq,
                       static_cast<int>(s.width),
                       static_cast<float>(eps),
                       x.as<T>(),
                       residual.empty() ? nullptr : residual.as<T>(),
                       sum.as<T>(),
                       y.as<T>(),
                       mean.as<float>(),
                       rstd.as<float>()};
    const float* const gammas = gamma.as<float>();
    const float* const betas = beta.as<float>();
    const auto run = [&](auto wide) {
      constexpr int width = decltype(wide)::value;
      with_turns<width, most_held_forward>(
          s.width / width, most_forward_threads, [&](auto turns, dim3 threads) {
            launch(name, forward_kernel<T, width, decltype(turns)::value>,
                   Grid{extents(ceil_div(a.rows, threads.y)), threads}, stream(), a, gammas, betas);
          });
    };
    constexpr int widest = widest_pack<T>;
    if (rows_fit<widest>(s.width, a.x, a.residual, gammas, betas, a.sum, a.y)) {
      run(std::integral_constant<int, widest>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
}

void CudaBackend::add_layer_norm_backward(const DropoutMask& mask, ConstView dy, ConstView sum,
                                          ConstView mean, ConstView rstd, ConstView gamma, View dsum, View dx,
                                          View dgamma, View dbeta, bool accumulate) {
  constexpr auto name = "add_layer_norm_backward";
  const LayerNormSizes s =
      check_add_layer_norm_backward(name, dy, sum, mean, rstd, gamma, dsum, dx, dgamma, dbeta);
  MOTLEY_CHECK(s.width <= most_width);
  const Dropout drop = dropout_of(name, mask);
  // Enough blocks to fill the largest devices more than once, so that few of their processors wait for the
  // last ones, and the same on every device: the sums depend on it.
  constexpr std::int64_t most_blocks = 1024;
  std::int64_t blocks = 0;
  const float* partial = nullptr;
  with_element_type(name, "dy", dy.dtype, [&](auto tag) {
    using T = decltype(tag);
    Backward<T> a{drop,
                  s.rows(),
                  s.seq,
                  0,
                  static_cast<int>(s.width),
                  dy.as<T>(),
                  sum.as<T>(),
                  mean.as<float>(),
                  rstd.as<float>(),
                  dsum.data == dx.data ? nullptr : dsum.as<T>(),
                  dx.empty() ? nullptr : dx.as<T>(),
                  nullptr};
    const float* const gammas = gamma.as<float>();
    const auto run = [&](auto wide) {
      constexpr int width = decltype(wide)::value;
      with_turns<width, most_held_backward>(
          s.width / width, most_backward_threads, [&](auto turns, dim3 threads) {
            a.rows_per_block =
                std::max<std::int64_t>(1, ceil_div(a.rows, most_blocks * threads.y)) * threads.y;
            blocks = ceil_div(a.rows, a.rows_per_block);
            const std::int64_t floats = 2 * s.width;
            partial = a.partial = scratch<float>(blocks * floats);
            const std::size_t shared = threads.y > 1 ? static_cast<std::size_t>(floats) * sizeof(float) : 0;
            launch(name, backward_kernel<T, width, decltype(turns)::value>,
                   Grid{extents(blocks), threads, shared}, stream(), a, gammas);
          });
    };
    constexpr int widest = widest_pack<T>;
    if (rows_fit<widest>(s.width, a.dy, a.sum, gammas, a.dsum, a.dx)) {
      run(std::integral_constant<int, widest>{});
    } else {
      run(std::integral_constant<int, 1>{});
    }
  });
  column_sums_of_pairs(name, *this, blocks, s.width, partial, dgamma.as<float>(), dbeta.as<float>(),
                       accumulate);
}

}  // namespace motley
