// Multi-head attention, one sample and head at a time, a tile of queries after the other. The backward pass
// forms the probabilities again from the scores and their log-sum-exp, as FlashAttention does (Dao et al.,
// 2022, section 3.1); here whole rows of scores are formed, since a tile of them fits into the cache.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/random.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr float no_score = -std::numeric_limits<float>::infinity();

struct Sizes : AttentionSizes {
  // Queries whose scores are formed together: at most 128 KiB of them.
  std::int64_t tile() const {
    return std::clamp<std::int64_t>(32768 / std::max<std::int64_t>(seq, 1), 8, 64);
  }
};

// Working memory of one thread, and its products.
class Workspace {
 public:
  Workspace(std::byte* memory, std::atomic<dnnl_status_t>& failure) : next_(memory), failure_(failure) {}

  // On this thread. A failure is kept for the caller of the parallel loop, which no exception may leave.
  void multiply(const Product& product, const float* a, const float* b, float* c) {
    const dnnl_status_t status = sgemm(product, a, b, c);
    if (status != dnnl_success) failure_ = status;
  }

  float* floats(std::int64_t count) {
    auto* result = reinterpret_cast<float*>(next_);
    next_ += rounded(count) * static_cast<std::int64_t>(sizeof(float));
    return result;
  }
  static std::int64_t rounded(std::int64_t count) { return ceil_div(count, 16) * 16; }

 private:
  std::byte* next_;
  std::atomic<dnnl_status_t>& failure_;
};

std::int64_t random_floats(const Sizes& s) {
  return Workspace::rounded(random_run_room(s.seq));
}

std::int64_t forward_floats(const Sizes& s) {
  return 3 * Workspace::rounded(s.seq * s.dim) + Workspace::rounded(s.tile() * s.seq) +
         Workspace::rounded(s.tile() * s.dim) + Workspace::rounded(s.seq) + random_floats(s);
}

std::int64_t backward_floats(const Sizes& s) {
  return 6 * Workspace::rounded(s.seq * s.dim) + 3 * Workspace::rounded(s.tile() * s.seq) +
         Workspace::rounded(s.tile() * s.dim) + Workspace::rounded(s.seq) + random_floats(s);
}

// to [rows, dim] = factor * from, whose rows are `stride` apart.
template <class T>
void load_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t dim, float factor,
               float* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t d = 0; d < dim; ++d) to[r * dim + d] = to_float(from[r * stride + d]) * factor;
  }
}

template <class T>
void store_rows(const float* from, std::int64_t rows, std::int64_t dim, float factor, T* to,
                std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (std::int64_t d = 0; d < dim; ++d) to[r * stride + d] = from_float<T>(from[r * dim + d] * factor);
  }
}

// What masks one sample: `bias` is added to the scores of the first `keys` keys; behind them there are none.
struct Keys {
  std::int64_t keys;
  float* bias;
};

Keys load_keys(const std::uint8_t* mask, std::int64_t seq, float* bias) {
  std::int64_t keys = 0;
  for (std::int64_t k = 0; k < seq; ++k) {
    if (mask[k] != 0) keys = k + 1;
    bias[k] = mask[k] != 0 ? 0.0f : no_score;
  }
  return {keys, bias};
}

// Scores to probabilities, not yet divided by their sum; the log-sum-exp and the divisor of the row.
struct Softmax {
  float log_sum_exp, inverse;
};

Softmax exponentiate(float* scores, std::int64_t keys, const float* bias) {
  float highest = no_score;
#pragma omp simd reduction(max : highest)
  for (std::int64_t i = 0; i < keys; ++i) {
    scores[i] += bias[i];
    highest = scores[i] > highest ? scores[i] : highest;
  }
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < keys; ++i) {
    scores[i] = vector_exp(scores[i] - highest);
    sum += scores[i];
  }
  return {highest + std::log(sum), 1.0f / sum};
}

// p = factor * scores, with dropout unless words is null.
void weigh(float* scores, std::int64_t keys, float factor, DropRule rule, const std::uint32_t* words) {
  if (words == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < keys; ++i) scores[i] *= factor;
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < keys; ++i) scores[i] = rule(words[i], scores[i] * factor);
  }
}

struct Drop {
  const Attention& attention;
  DropRule rule;
  std::int64_t seq;

  // Random numbers of the first `keys` keys of one query; null when nothing is dropped.
  const std::uint32_t* words(std::int64_t sample, std::int64_t head, std::int64_t query, std::int64_t keys,
                             std::uint32_t* buffer) const {
    if (attention.dropout.probability == 0) return nullptr;
    const auto slot = attention.dropout.first_slot + static_cast<std::uint32_t>(sample);
    return random_run(attention.dropout.key, slot, (head * seq + query) * seq, keys, buffer);
  }
};

// Where a (sample, head) begins in the tensors.
struct Place {
  std::int64_t sample, head;

  std::int64_t qkv(const Sizes& s, int part) const {
    return sample * s.seq * s.token() + (part * s.heads + head) * s.dim;
  }
  std::int64_t context(const Sizes& s) const { return (sample * s.seq * s.heads + head) * s.dim; }
  std::int64_t rows(const Sizes& s) const { return (sample * s.heads + head) * s.seq; }
};

template <class T>
void forward_head(const Sizes& s, const Place& place, const Drop& drop, const T* qkv,
                  const std::uint8_t* mask, T* context, float* log_sum_exp, Workspace work) {
  float* q = work.floats(s.seq * s.dim);
  float* k = work.floats(s.seq * s.dim);
  float* v = work.floats(s.seq * s.dim);
  float* scores = work.floats(s.tile() * s.seq);
  float* sums = work.floats(s.tile() * s.dim);
  const Keys keys = load_keys(mask, s.seq, work.floats(s.seq));
  auto* random = reinterpret_cast<std::uint32_t*>(work.floats(random_floats(s)));
  if (keys.keys == 0) {
    std::fill_n(log_sum_exp, s.seq, 0.0f);
    for (std::int64_t r = 0; r < s.seq; ++r) std::fill_n(context + r * s.heads * s.dim, s.dim, T{});
    return;
  }
  load_rows(qkv + place.qkv(s, 0), s.token(), s.seq, s.dim, s.scale(), q);
  load_rows(qkv + place.qkv(s, 1), s.token(), keys.keys, s.dim, 1.0f, k);
  load_rows(qkv + place.qkv(s, 2), s.token(), keys.keys, s.dim, 1.0f, v);
  for (std::int64_t first = 0; first < s.seq; first += s.tile()) {
    const std::int64_t rows = std::min(s.tile(), s.seq - first);
    work.multiply({.transpose_b = true, .m = rows, .n = keys.keys, .k = s.dim}, q + first * s.dim, k, scores);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * keys.keys;
      const Softmax softmax = exponentiate(row, keys.keys, keys.bias);
      log_sum_exp[first + r] = softmax.log_sum_exp;
      const std::uint32_t* words = drop.words(place.sample, place.head, first + r, keys.keys, random);
      weigh(row, keys.keys, softmax.inverse, drop.rule, words);
    }
    work.multiply({.m = rows, .n = s.dim, .k = keys.keys}, scores, v, sums);
    store_rows(sums, rows, s.dim, 1.0f, context + first * s.heads * s.dim, s.heads * s.dim);
  }
}

// scores -> probabilities p; dropped = dropout(p); the sum of dropped * ddropped over the keys.
float probabilities_again(std::int64_t keys, const float* bias, DropRule rule, const std::uint32_t* words,
                          float log_sum_exp, const float* ddropped, float* scores, float* dropped) {
  float sum = 0;
  if (words == nullptr) {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < keys; ++i) {
      const float p = vector_exp(scores[i] + bias[i] - log_sum_exp);
      scores[i] = p;
      dropped[i] = p;
      sum += p * ddropped[i];
    }
  } else {
#pragma omp simd reduction(+ : sum)
    for (std::int64_t i = 0; i < keys; ++i) {
      const float p = vector_exp(scores[i] + bias[i] - log_sum_exp);
      const float kept = rule(words[i], p);
      scores[i] = p;
      dropped[i] = kept;
      sum += kept * ddropped[i];
    }
  }
  return sum;
}

template <class T>
void backward_head(const Sizes& s, const Place& place, const Drop& drop, const T* qkv,
                   const std::uint8_t* mask, const float* log_sum_exp, const T* dcontext, T* dqkv,
                   Workspace work) {
  float* q = work.floats(s.seq * s.dim);
  float* k = work.floats(s.seq * s.dim);
  float* v = work.floats(s.seq * s.dim);
  float* dq = work.floats(s.seq * s.dim);
  float* dk = work.floats(s.seq * s.dim);
  float* dv = work.floats(s.seq * s.dim);
  float* scores = work.floats(s.tile() * s.seq);
  float* dropped = work.floats(s.tile() * s.seq);
  float* ddropped = work.floats(s.tile() * s.seq);
  float* gradient = work.floats(s.tile() * s.dim);
  const Keys keys = load_keys(mask, s.seq, work.floats(s.seq));
  auto* random = reinterpret_cast<std::uint32_t*>(work.floats(random_floats(s)));
  std::fill_n(dq, s.seq * s.dim, 0.0f);
  std::fill_n(dk, s.seq * s.dim, 0.0f);
  std::fill_n(dv, s.seq * s.dim, 0.0f);
  load_rows(qkv + place.qkv(s, 0), s.token(), s.seq, s.dim, s.scale(), q);
  load_rows(qkv + place.qkv(s, 1), s.token(), keys.keys, s.dim, 1.0f, k);
  load_rows(qkv + place.qkv(s, 2), s.token(), keys.keys, s.dim, 1.0f, v);
  for (std::int64_t first = 0; first < s.seq && keys.keys > 0; first += s.tile()) {
    const std::int64_t rows = std::min(s.tile(), s.seq - first);
    load_rows(dcontext + first * s.heads * s.dim, s.heads * s.dim, rows, s.dim, 1.0f, gradient);
    work.multiply({.transpose_b = true, .m = rows, .n = keys.keys, .k = s.dim}, q + first * s.dim, k, scores);
    work.multiply({.transpose_b = true, .m = rows, .n = keys.keys, .k = s.dim}, gradient, v, ddropped);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* p = scores + r * keys.keys;
      float* dp = ddropped + r * keys.keys;
      float* kept = dropped + r * keys.keys;
      const std::uint32_t* words = drop.words(place.sample, place.head, first + r, keys.keys, random);
      const float sum =
          probabilities_again(keys.keys, keys.bias, drop.rule, words, log_sum_exp[first + r], dp, p, kept);
#pragma omp simd
      for (std::int64_t i = 0; i < keys.keys; ++i) p[i] = kept[i] * dp[i] - p[i] * sum;
    }
    work.multiply({.transpose_a = true, .m = keys.keys, .n = s.dim, .k = rows, .accumulate = true}, dropped,
                  gradient, dv);
    work.multiply({.m = rows, .n = s.dim, .k = keys.keys}, scores, k, dq + first * s.dim);
    work.multiply({.transpose_a = true, .m = keys.keys, .n = s.dim, .k = rows, .accumulate = true}, scores,
                  q + first * s.dim, dk);
  }
  store_rows(dq, s.seq, s.dim, s.scale(), dqkv + place.qkv(s, 0), s.token());
  store_rows(dk, s.seq, s.dim, 1.0f, dqkv + place.qkv(s, 1), s.token());
  store_rows(dv, s.seq, s.dim, 1.0f, dqkv + place.qkv(s, 2), s.token());
}

// Calls body(place, workspace) for every head of every sample, each with memory for `floats` of its thread's.
template <class Body>
void for_each_head(const char* operation, const Sizes& s, int threads, std::byte* memory, std::int64_t floats,
                   const Body& body) {
  const std::size_t room = static_cast<std::size_t>(floats) * sizeof(float);
  std::atomic<dnnl_status_t> failure{dnnl_success};
  const onednn::ThreadScope scope(1);  // of each product
  parallel_for_threads(threads, s.n * s.heads, [&](std::int64_t index, int thread) {
    body(Place{index / s.heads, index % s.heads},
         Workspace(memory + room * static_cast<std::size_t>(thread), failure));
  });
  onednn::check(operation, failure);
}

std::size_t scratch_bytes(std::int64_t floats, int threads) {
  return static_cast<std::size_t>(floats) * sizeof(float) * static_cast<std::size_t>(threads);
}

}  // namespace

void CpuBackend::attention_forward(const Attention& attention, ConstView qkv, ConstView key_mask,
                                   View context, View log_sum_exp) {
  constexpr auto name = "attention_forward";
  const Sizes s{check_attention_forward(name, attention, qkv, key_mask, context, log_sum_exp)};
  const Drop drop{attention, drop_rule(name, attention.dropout), s.seq};
  const std::int64_t floats = forward_floats(s);
  std::byte* memory = scratch(scratch_bytes(floats, threads()));
  const std::uint8_t* mask = key_mask.as<std::uint8_t>();
  with_element_type(name, "qkv", qkv, [&](auto type) {
    using T = decltype(type);
    const T* in = qkv.as<T>();
    T* out = context.as<T>();
    for_each_head(name, s, threads(), memory, floats, [&](const Place& place, Workspace work) {
      forward_head(s, place, drop, in, mask + place.sample * s.seq, out + place.context(s),
                   log_sum_exp.as<float>() + place.rows(s), work);
    });
  });
}

void CpuBackend::attention_backward(const Attention& attention, ConstView qkv, ConstView key_mask,
                                    ConstView context, ConstView log_sum_exp, ConstView dcontext, View dqkv) {
  constexpr auto name = "attention_backward";
  const Sizes s{
      check_attention_backward(name, attention, qkv, key_mask, context, log_sum_exp, dcontext, dqkv)};
  const Drop drop{attention, drop_rule(name, attention.dropout), s.seq};
  const std::int64_t floats = backward_floats(s);
  std::byte* memory = scratch(scratch_bytes(floats, threads()));
  const std::uint8_t* mask = key_mask.as<std::uint8_t>();
  with_element_type(name, "qkv", qkv, [&](auto type) {
    using T = decltype(type);
    const T* in = qkv.as<T>();
    const T* gradient = dcontext.as<T>();
    T* out = dqkv.as<T>();
    for_each_head(name, s, threads(), memory, floats, [&](const Place& place, Workspace work) {
      backward_head(s, place, drop, in, mask + place.sample * s.seq, log_sum_exp.as<float>() + place.rows(s),
                    gradient + place.context(s), out, work);
    });
  });
}

}  // namespace motley
