// What attention does between its products: rows of scores to probabilities, with the key mask and dropout,
// and to the gradients of scores. A row is read once and kept in registers by a warp, or, where it has more
// than 1024 keys, read again by a block.
//
// Rows are `stride` elements apart, a multiple of 8 that is at least seq. The mask has that stride too and
// masks the keys behind seq, so that no loop has a tail: what lies behind seq is read and never used, and
// zeros are written there.
#pragma once

#include "kernels/cuda/dropout.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rows.cuh"

namespace motley::cuda::attention {

constexpr int row_threads = 256;  // of a block: as many warps as rows, or all for one row
constexpr int row_warps = row_threads / warp_size;
constexpr int pack_keys = 4;                      // as many as one call of Philox has numbers for
constexpr int warp_keys = warp_size * pack_keys;  // of one round of a warp
constexpr int block_keys = row_threads * pack_keys;

// Rows of consecutive (sample, head) pairs of [n, heads, seq].
struct Rows {
  std::uint32_t count = 0;
  std::uint32_t first_pair = 0;
  std::uint32_t seq = 0, stride = 0, heads = 0;
};

// One of them: where it is in [n, heads, seq], whose it is, and the element of its first key for dropout.
struct Row {
  std::int64_t place;
  std::uint32_t sample;
  std::uint64_t element;

  __device__ Row(const Rows& rows, std::uint32_t index) {
    const std::uint32_t pair = rows.first_pair + index / rows.seq, query = index % rows.seq;
    const std::uint32_t head = pair % rows.heads;
    place = std::int64_t{pair} * rows.seq + query;
    sample = pair / rows.heads;
    element = (std::uint64_t{head} * rows.seq + query) * rows.seq;
  }
};

using Four = Pack<float, pack_keys>;

// dropout() of the probabilities of four neighbouring keys, the first of which is `element`. Where seq is a
// multiple of 4 they have one Philox call to themselves; elsewhere they lie across two.
__device__ inline Four dropped(const Dropout& drop, std::uint32_t sample, std::uint64_t element,
                               const Four& p) {
  const std::uint32_t slot = drop.first_slot + sample;
  const auto block = static_cast<std::uint32_t>(element / 4);
  const auto shift = static_cast<unsigned>(element % 4);  // the same in the whole row
  Philox4 w = random_block(drop.key, slot, block);
  if (shift != 0) {
    const Philox4 v = random_block(drop.key, slot, block + 1);
    if (shift == 1) w = {w.y, w.z, w.w, v.x};
    if (shift == 2) w = {w.z, w.w, v.x, v.y};
    if (shift == 3) w = {w.w, v.x, v.y, v.z};
  }
  return {drop.rule(w.x, p.at[0]), drop.rule(w.y, p.at[1]), drop.rule(w.z, p.at[2]), drop.rule(w.w, p.at[3])};
}

// Whether each of four keys may be seen.
__device__ inline Pack<std::uint8_t, pack_keys> seen_keys(const std::uint8_t* mask, const Rows& rows,
                                                          const Row& row, std::uint32_t key) {
  return load<pack_keys>(mask + std::int64_t{row.sample} * rows.stride + key);
}

// --- Forward ----------------------------------------------------------------------------------------------

// What turns scores into probabilities: exp(score - highest) * inverse. A row without any key has zeros.
struct Softmax {
  float highest, inverse;
  bool any;

  __device__ Softmax(float highest_score, bool any_key)
      : highest(any_key ? highest_score : 0.0f), any(any_key) {}
  __device__ float exponential(float score) const { return expf(score - highest); }
  // Takes the sum of the exponentials; gives the log-sum-exp.
  __device__ float finish(float sum) {
    inverse = any ? 1.0f / sum : 0.0f;
    return any ? highest + logf(sum) : 0.0f;
  }
};

template <class T, bool dropping>
__device__ inline void store_probabilities(const Dropout& drop, const Row& row, std::uint32_t key,
                                           Four probability, T* to) {
  if constexpr (dropping) probability = dropped(drop, row.sample, row.element + key, probability);
  store_floats(to + key, probability.at);
}

// probabilities = dropout(softmax(scores)), which may lie where the scores did; a warp has a row of at most
// packs * warp_keys keys.
template <class T, int packs, bool dropping>
__global__ void __launch_bounds__(row_threads)
    softmax_kernel(Rows rows, Dropout drop, const float* scores, const std::uint8_t* mask, T* probabilities,
                   float* log_sum_exp) {
  const std::uint32_t lane = threadIdx.x % warp_size;
  const std::uint32_t index = blockIdx.x * row_warps + threadIdx.x / warp_size;
  if (index >= rows.count) return;
  const Row row(rows, index);
  const std::int64_t start = std::int64_t{index} * rows.stride;
  Four x[packs];
  float highest = -infinity;
  bool any = false;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const std::uint32_t key = p * warp_keys + lane * pack_keys;
    x[p] = {-infinity, -infinity, -infinity, -infinity};
    if (key >= rows.stride) continue;
    const auto score = load<pack_keys>(scores + start + key);
    const auto seen = seen_keys(mask, rows, row, key);
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) {
      if (seen.at[i] == 0) continue;
      x[p].at[i] = score.at[i];
      highest = fmaxf(highest, score.at[i]);
      any = true;
    }
  }
  Softmax softmax(warp_max(highest), __any_sync(full_warp, any ? 1 : 0) != 0);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) sum += x[p].at[i] = softmax.exponential(x[p].at[i]);
  }
  const float total = softmax.finish(warp_sum(sum));
  if (lane == 0) log_sum_exp[row.place] = total;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const std::uint32_t key = p * warp_keys + lane * pack_keys;
    if (key >= rows.stride) continue;
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) x[p].at[i] *= softmax.inverse;
    store_probabilities<T, dropping>(drop, row, key, x[p], probabilities + start);
  }
}

// The same for rows of any length, by a block each. Every thread writes only what it has read itself.
template <class T, bool dropping>
__global__ void __launch_bounds__(row_threads)
    softmax_block_kernel(Rows rows, Dropout drop, const float* scores, const std::uint8_t* mask,
                         T* probabilities, float* log_sum_exp) {
  const Row row(rows, blockIdx.x);
  const std::int64_t start = std::int64_t{blockIdx.x} * rows.stride;
  const auto masked_scores = [&](std::uint32_t key) {
    const auto score = load<pack_keys>(scores + start + key);
    const auto seen = seen_keys(mask, rows, row, key);
    Four x;
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) x.at[i] = seen.at[i] == 0 ? -infinity : score.at[i];
    return x;
  };
  float highest = -infinity, keys = 0;
  for (std::uint32_t key = threadIdx.x * pack_keys; key < rows.stride; key += block_keys) {
    const Four x = masked_scores(key);
    const auto seen = seen_keys(mask, rows, row, key);
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) {
      highest = fmaxf(highest, x.at[i]);
      if (seen.at[i] != 0) keys = 1;
    }
  }
  highest = block_max(highest);
  Softmax softmax(highest, block_max(keys) > 0);
  float sum = 0;
  for (std::uint32_t key = threadIdx.x * pack_keys; key < rows.stride; key += block_keys) {
    const Four x = masked_scores(key);
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) sum += softmax.exponential(x.at[i]);
  }
  const float total = softmax.finish(block_sum(sum));
  if (threadIdx.x == 0) log_sum_exp[row.place] = total;
  for (std::uint32_t key = threadIdx.x * pack_keys; key < rows.stride; key += block_keys) {
    Four x = masked_scores(key);
#pragma unroll
    for (int i = 0; i < pack_keys; ++i) x.at[i] = softmax.exponential(x.at[i]) * softmax.inverse;
    store_probabilities<T, dropping>(drop, row, key, x, probabilities + start);
  }
}

// --- Backward ---------------------------------------------------------------------------------------------

// Four keys of a row: probabilities p again, kept = dropout(p), and the gradients of kept; 0 where a key is
// masked.
struct Again {
  Four p, kept, dkept;
};

template <bool dropping>
__device__ inline Again probabilities_again(const Rows& rows, const Dropout& drop, const Row& row,
                                            std::uint32_t key, const float* scores, const float* dkept,
                                            const std::uint8_t* mask, float log_sum_exp) {
  const auto score = load<pack_keys>(scores + key);
  const auto gradient = load<pack_keys>(dkept + key);
  const auto seen = seen_keys(mask, rows, row, key);
  Again again;
#pragma unroll
  for (int i = 0; i < pack_keys; ++i) {
    again.p.at[i] = seen.at[i] == 0 ? 0.0f : expf(score.at[i] - log_sum_exp);
    again.dkept.at[i] = seen.at[i] == 0 ? 0.0f : gradient.at[i];
  }
  again.kept = again.p;
  if constexpr (dropping) again.kept = dropped(drop, row.sample, row.element + key, again.p);
  return again;
}

__device__ inline float dot(const Four& a, const Four& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < pack_keys; ++i) sum += a.at[i] * b.at[i];
  return sum;
}

// `mean` is the sum of kept * dkept over the row.
template <class T>
__device__ inline void store_gradients(const Again& again, float mean, T* kept, T* dscores) {
  Four gradient;
#pragma unroll
  for (int i = 0; i < pack_keys; ++i)
    gradient.at[i] = again.kept.at[i] * again.dkept.at[i] - again.p.at[i] * mean;
  store_floats(kept, again.kept.at);
  store_floats(dscores, gradient.at);
}

// kept = dropout(p), which may lie where the scores did, and the gradients of the scores, which may lie where
// those of kept did; p from scores and log_sum_exp. Two blocks per multiprocessor are enough: with more the
// compiler would put a part of the row into memory.
template <class T, int packs, bool dropping>
__global__ void __launch_bounds__(row_threads, 2)
    softmax_backward_kernel(Rows rows, Dropout drop, const float* scores, const float* dkept,
                            const std::uint8_t* mask, const float* log_sum_exp, T* kept, T* dscores) {
  const std::uint32_t lane = threadIdx.x % warp_size;
  const std::uint32_t index = blockIdx.x * row_warps + threadIdx.x / warp_size;
  if (index >= rows.count) return;
  const Row row(rows, index);
  const std::int64_t start = std::int64_t{index} * rows.stride;
  const float total = log_sum_exp[row.place];
  Again again[packs];
  float mean = 0;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const std::uint32_t key = p * warp_keys + lane * pack_keys;
    if (key < rows.stride) {
      again[p] =
          probabilities_again<dropping>(rows, drop, row, key, scores + start, dkept + start, mask, total);
      mean += dot(again[p].kept, again[p].dkept);
    } else {
      again[p] = {};
    }
  }
  mean = warp_sum(mean);
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const std::uint32_t key = p * warp_keys + lane * pack_keys;
    if (key < rows.stride) store_gradients(again[p], mean, kept + start + key, dscores + start + key);
  }
}

template <class T, bool dropping>
__global__ void __launch_bounds__(row_threads)
    softmax_backward_block_kernel(Rows rows, Dropout drop, const float* scores, const float* dkept,
                                  const std::uint8_t* mask, const float* log_sum_exp, T* kept, T* dscores) {
  const Row row(rows, blockIdx.x);
  const std::int64_t start = std::int64_t{blockIdx.x} * rows.stride;
  const float total = log_sum_exp[row.place];
  const auto again_at = [&](std::uint32_t key) {
    return probabilities_again<dropping>(rows, drop, row, key, scores + start, dkept + start, mask, total);
  };
  float mean = 0;
  for (std::uint32_t key = threadIdx.x * pack_keys; key < rows.stride; key += block_keys) {
    const Again again = again_at(key);
    mean += dot(again.kept, again.dkept);
  }
  mean = block_sum(mean);
  for (std::uint32_t key = threadIdx.x * pack_keys; key < rows.stride; key += block_keys)
    store_gradients(again_at(key), mean, kept + start + key, dscores + start + key);
}

// --- Launch -----------------------------------------------------------------------------------------------

// body(packs, dropping), constants both: the rounds in which a warp reads a row, 0 for a block; and whether
// anything is dropped, so that without dropout no random number is drawn.
template <class Body>
void with_kind(const Rows& rows, const Dropout& drop, Body body) {
  const auto with_packs = [&](auto packs) {
    if (drop.rule.threshold > 0) return body(packs, std::true_type{});
    body(packs, std::false_type{});
  };
  if (rows.stride <= warp_keys) return with_packs(std::integral_constant<int, 1>{});
  if (rows.stride <= 2 * warp_keys) return with_packs(std::integral_constant<int, 2>{});
  if (rows.stride <= 4 * warp_keys) return with_packs(std::integral_constant<int, 4>{});
  if (rows.stride <= 8 * warp_keys) return with_packs(std::integral_constant<int, 8>{});
  with_packs(std::integral_constant<int, 0>{});
}

template <class T>
void softmax(const char* name, cudaStream_t stream, const Rows& rows, const Dropout& drop,
             const float* scores, const std::uint8_t* mask, T* probabilities, float* log_sum_exp) {
  with_kind(rows, drop, [&](auto packs, auto dropping) {
    constexpr int rounds = decltype(packs)::value;
    if constexpr (rounds == 0) {
      launch(name, softmax_block_kernel<T, decltype(dropping)::value>, {dim3(rows.count), dim3(row_threads)},
             stream, rows, drop, scores, mask, probabilities, log_sum_exp);
    } else {
      launch(name, softmax_kernel<T, rounds, decltype(dropping)::value>,
             {extents(ceil_div(rows.count, row_warps)), dim3(row_threads)}, stream, rows, drop, scores, mask,
             probabilities, log_sum_exp);
    }
  });
}

template <class T>
void softmax_backward(const char* name, cudaStream_t stream, const Rows& rows, const Dropout& drop,
                      const float* scores, const float* dkept, const std::uint8_t* mask,
                      const float* log_sum_exp, T* kept, T* dscores) {
  with_kind(rows, drop, [&](auto packs, auto dropping) {
    constexpr int rounds = decltype(packs)::value;
    if constexpr (rounds == 0) {
      launch(name, softmax_backward_block_kernel<T, decltype(dropping)::value>,
             {dim3(rows.count), dim3(row_threads)}, stream, rows, drop, scores, dkept, mask, log_sum_exp,
             kept, dscores);
    } else {
      launch(name, softmax_backward_kernel<T, rounds, decltype(dropping)::value>,
             {extents(ceil_div(rows.count, row_warps)), dim3(row_threads)}, stream, rows, drop, scores, dkept,
             mask, log_sum_exp, kept, dscores);
    }
  });
}

}  // namespace motley::cuda::attention
