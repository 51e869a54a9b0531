// Log-softmax, negative log-likelihood and accuracy. The logits are read once for the highest, the sum of
// exponentials and the rank of the label together (Milakov, Gimelshein, "Online normalizer calculation for
// softmax", 2018), and once more, out of cache as far as it holds them, for the gradient.
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

using namespace cuda;

constexpr std::int64_t warp_classes = 1024;  // rows of more have a block of their own
constexpr int most_threads = 1024, warp_rows = 8;

// What one row, or some of them, add to `sums` of softmax_nll.
struct LossSums {
  double at[4];
  __device__ LossSums operator+(const LossSums& other) const {
    return {{at[0] + other.at[0], at[1] + other.at[1], at[2] + other.at[2], at[3] + other.at[3]}};
  }
};

// The total of exp(x - highest), and the number of classes that rank before the label.
struct RowSums {
  float total;
  int ahead;
  __device__ RowSums operator+(RowSums other) const { return {total + other.total, ahead + other.ahead}; }
};

// exp(x - highest) where highest may be -infinity because nothing else has been seen: 0 then.
__device__ inline float exp_below(float x, float highest) {
  return expf(x - (highest == -infinity ? 0.0f : highest));
}

// f(count, class) for `count` neighbouring classes of a row, a constant 1 or `width`, as far as they are this
// thread's. Element `first` of the matrix is class 0: where a row begins between two packs, its first classes
// come one by one, and so do its last. Backwards: the last packs first, which the cache still holds of a row
// that was just read.
template <int width, bool backwards, class F>
__device__ inline void for_classes(std::int64_t first, int classes, F f) {
  const int before = static_cast<int>(-first & (width - 1)), head = before < classes ? before : classes;
  const int packs = width > 1 ? (classes - head) / width : 0, single = classes - packs * width;
  for (int i = static_cast<int>(threadIdx.x); i < single; i += static_cast<int>(blockDim.x))
    f(std::integral_constant<int, 1>{}, i < head ? i : i + packs * width);
  if constexpr (width > 1) {
#pragma unroll 4
    for (int p = static_cast<int>(threadIdx.x); p < packs; p += static_cast<int>(blockDim.x))
      f(std::integral_constant<int, width>{}, head + (backwards ? packs - 1 - p : p) * width);
  }
}

template <class T>
struct Rows {
  const float* logits;
  const std::int32_t* labels;
  std::int64_t count;
  int classes, top_k;
  float weight;
  LossSums* sums;  // [count]
  T* gradient;     // null: nobody needs it; may be the logits
};

// A row has the threads of a block in x.
template <class T, int width>
__global__ void __launch_bounds__(most_threads, 1) rows_kernel(const Rows<T> r) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= r.count) return;
  const std::int64_t first = row * r.classes;
  const float* const logits = r.logits + first;
  T* const gradient = r.gradient == nullptr ? nullptr : r.gradient + first;
  const std::int32_t label = r.labels[row];
  if (label == -1) {
    if (gradient != nullptr) {
      for_classes<width, false>(first, r.classes, [&](auto count, int c) {
        float zeros[decltype(count)::value] = {};
        store_floats(gradient + c, zeros);
      });
    }
    if (threadIdx.x == 0) r.sums[row] = {{0, 0, 0, 0}};
    return;
  }
  // The host can't be told without waiting for it that a label is no class. It shows as NaN.
  const bool known = label >= 0 && label < r.classes;
  const float chosen = known ? logits[label] : NAN;

  float highest = -infinity;
  RowSums sums{0, 0};
  for_classes<width, false>(first, r.classes, [&](auto count, int c) {
    constexpr int n = decltype(count)::value;
    float x[n];
    load_floats(logits + c, x);
    float higher = highest;
#pragma unroll
    for (int i = 0; i < n; ++i) higher = fmaxf(higher, x[i]);
    if (higher > highest) {
      sums.total *= exp_below(highest, higher);
      highest = higher;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sums.total += exp_below(x[i], highest);
      sums.ahead += x[i] > chosen || (x[i] == chosen && c + i < label) ? 1 : 0;
    }
  });
  const float own = highest;
  highest = block_max(highest);
  sums.total *= exp_below(own, highest);
  sums = block_sum(sums);
  const float total = known ? sums.total : NAN;

  if (threadIdx.x == 0) {
    const double loss =
        log(static_cast<double>(total)) + static_cast<double>(highest) - static_cast<double>(chosen);
    const bool right = total == total;  // not NaN
    r.sums[row] = {
        {loss, 1.0, right && sums.ahead == 0 ? 1.0 : 0.0, right && sums.ahead < r.top_k ? 1.0 : 0.0}};
  }
  if (gradient == nullptr) return;
  __syncwarp();  // in place, a lane may write what another has read until here; larger blocks had a barrier
  const float inverse = 1.0f / total, weight = r.weight;
  for_classes<width, true>(first, r.classes, [&](auto count, int c) {
    constexpr int n = decltype(count)::value;
    float x[n];
    load_floats(logits + c, x);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float probability = expf(x[i] - highest) * inverse;
      x[i] = (c + i == label ? probability - 1.0f : probability) * weight;
    }
    store_floats(gradient + c, x);
  });
}

// sums += those of all rows; one block.
__global__ void __launch_bounds__(most_threads)
    sums_kernel(const LossSums* of_row, std::int64_t rows, double* sums) {
  LossSums total{};
  for (std::int64_t row = threadIdx.x; row < rows; row += blockDim.x) total = total + of_row[row];
  total = block_sum(total);
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] += total.at[i];
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::softmax_nll(ConstView logits, ConstView labels, int top_k, View sums, View dlogits,
                              float weight) {
  constexpr auto name = "softmax_nll";
  check_softmax_nll(name, logits, labels, top_k, sums, dlogits);
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];
  MOTLEY_CHECK(classes <= std::numeric_limits<int>::max() / 2);

  auto* const of_row = scratch<LossSums>(rows);
  with_element_type(name, "dlogits", dlogits.dtype, [&](auto type) {
    using T = decltype(type);
    const Rows<T> r{logits.as<float>(),
                    labels.as<std::int32_t>(),
                    rows,
                    static_cast<int>(classes),
                    top_k,
                    weight,
                    of_row,
                    dlogits.empty() ? nullptr : dlogits.as<T>()};
    constexpr int wide = 4;
    const bool whole = packs_fit<wide>(r.logits, r.gradient);
    // A thread of a long row has some four packs; a short row has a warp.
    const std::int64_t threads =
        std::min<std::int64_t>(ceil_div(classes, 16 * warp_size) * warp_size, most_threads);
    const dim3 shape = classes <= warp_classes ? dim3(warp_size, warp_rows) : extents(threads);
    launch(name, whole ? rows_kernel<T, wide> : rows_kernel<T, 1>,
           Grid{extents(ceil_div(rows, shape.y)), shape}, stream(), r);
  });
  launch(name, sums_kernel, Grid{dim3(1), dim3(most_threads)}, stream(), of_row, rows, sums.as<double>());
}

}  // namespace motley
