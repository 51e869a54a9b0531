// Layer normalisation of dropout(x) + residual: Ba, Kiros, Hinton, "Layer normalization", 2016. A row is
// worked on in float32 in a cache-resident buffer, so that views may share memory as backend.h allows.
#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t row_block = 32;  // rows whose dgamma and dbeta are added up together

// Buffers of one thread, in float32s.
struct RowBuffers {
  explicit RowBuffers(std::int64_t width)
      : row(ceil_div(width, 16) * 16), random(ceil_div(random_run_room(width), 16) * 16) {}
  std::int64_t row, random;

  std::int64_t floats(std::int64_t rows) const { return rows * row + random; }
};

// The random numbers that drop elements of row `row` (of all tokens), or null when none are dropped.
const std::uint32_t* row_words(const DropoutMask& mask, const LayerNormSizes& s, std::int64_t row,
                               std::uint32_t* words) {
  if (mask.probability == 0) return nullptr;
  const auto slot = mask.first_slot + static_cast<std::uint32_t>(row / s.seq);
  return random_run(mask.key, slot, row % s.seq * s.width, s.width, words);
}

struct Moments {
  float mean, rstd;
};

Moments moments(const float* x, std::int64_t width, double eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(width);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < width; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const double variance = static_cast<double>(squares) / static_cast<double>(width);
  return {mean, static_cast<float>(1 / std::sqrt(variance + eps))};
}

template <class T>
void normalize(const float* x, std::int64_t width, Moments m, const float* gamma, const float* beta, T* y) {
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    y[i] = from_float<T>((x[i] - m.mean) * m.rstd * gamma[i] + beta[i]);
  }
}

// line = sum = dropout(x) + residual, as T holds it.
template <class T>
void add_row(DropRule rule, const std::uint32_t* words, const T* x, const T* residual, std::int64_t width,
             float* line, T* sum) {
  if (words == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) line[i] = to_float(x[i]);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) line[i] = rule(words[i], to_float(x[i]));
  }
  if (residual != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) line[i] += to_float(residual[i]);
  }
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const T rounded = from_float<T>(line[i]);
    sum[i] = rounded;
    line[i] = to_float(rounded);
  }
}

template <class T>
struct BackwardRow {
  const T* dy;
  const T* sum;
  float mean, rstd;
  T* dsum;
  T* dx;  // may be null
};

// dsum and dx of one row, and its terms of dgamma and dbeta. `scaled` and `centred` are buffers.
template <class T>
void backward_row(DropRule rule, const std::uint32_t* words, const BackwardRow<T>& r, const float* gamma,
                  std::int64_t width, float* scaled, float* centred, float* dgamma, float* dbeta) {
  // Copies, which no store through a pointer can change: otherwise the loops are not vectorised.
  const T* dy = r.dy;
  const T* sum = r.sum;
  T* dsum = r.dsum;
  T* dx = r.dx;
  const float mean = r.mean, rstd = r.rstd;
  float sum_scaled = 0, sum_product = 0;
#pragma omp simd reduction(+ : sum_scaled, sum_product)
  for (std::int64_t i = 0; i < width; ++i) {
    const float gradient = to_float(dy[i]);
    const float normal = (to_float(sum[i]) - mean) * rstd;
    const float product = gradient * gamma[i];
    dgamma[i] += gradient * normal;
    dbeta[i] += gradient;
    scaled[i] = product;
    centred[i] = normal;
    sum_scaled += product;
    sum_product += product * normal;
  }
  const float mean_scaled = sum_scaled / static_cast<float>(width);
  const float mean_product = sum_product / static_cast<float>(width);
#pragma omp simd
  for (std::int64_t i = 0; i < width; ++i) {
    const T rounded = from_float<T>(rstd * (scaled[i] - mean_scaled - centred[i] * mean_product));
    dsum[i] = rounded;
    scaled[i] = to_float(rounded);
  }
  if (dx == nullptr) return;
  if (words == nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) dx[i] = from_float<T>(scaled[i]);
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < width; ++i) dx[i] = from_float<T>(rule(words[i], scaled[i]));
  }
}

// out [width] (+)= the sum of partial [blocks, stride], in order.
void combine(int threads, const float* partial, std::int64_t blocks, std::int64_t stride, std::int64_t width,
             bool accumulate, float* out) {
  constexpr std::int64_t columns = 64;
  parallel_blocks(threads, width, columns, [&](std::int64_t begin, std::int64_t end) {
    double sum[columns] = {};
    const auto count = static_cast<int>(end - begin);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const float* terms = partial + block * stride + begin;
#pragma omp simd
      for (int c = 0; c < count; ++c) sum[c] += static_cast<double>(terms[c]);
    }
    for (int c = 0; c < count; ++c) {
      out[begin + c] = static_cast<float>(sum[c]) + (accumulate ? out[begin + c] : 0.0f);
    }
  });
}

}  // namespace

void CpuBackend::add_layer_norm_forward(const DropoutMask& mask, ConstView x, ConstView residual,
                                        ConstView gamma, ConstView beta, double eps, View sum, View y,
                                        View mean, View rstd) {
  constexpr auto name = "add_layer_norm_forward";
  const LayerNormSizes s = check_add_layer_norm_forward(name, x, residual, gamma, beta, sum, y, mean, rstd);
  const DropRule rule = drop_rule(name, mask);
  const RowBuffers room(s.width);
  const std::int64_t blocks = ceil_div(s.rows(), row_block);
  auto* buffers =
      reinterpret_cast<float*>(scratch(static_cast<std::size_t>(threads() * room.floats(1)) * sizeof(float)));
  const float* g = gamma.as<float>();
  const float* b = beta.as<float>();
  float* means = mean.as<float>();
  float* rstds = rstd.as<float>();
  with_element_type(name, "x", x, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.as<T>();
    const T* added = residual.empty() ? nullptr : residual.as<T>();
    T* sums = sum.as<T>();
    T* out = y.as<T>();
    parallel_for_threads(threads(), blocks, [&](std::int64_t block, int thread) {
      float* line = buffers + thread * room.floats(1);
      auto* random = reinterpret_cast<std::uint32_t*>(line + room.row);
      for (std::int64_t row = block * row_block; row < std::min(s.rows(), (block + 1) * row_block); ++row) {
        const std::int64_t at = row * s.width;
        add_row(rule, row_words(mask, s, row, random), in + at, added == nullptr ? nullptr : added + at,
                s.width, line, sums + at);
        const Moments m = moments(line, s.width, eps);
        normalize(line, s.width, m, g, b, out + at);
        means[row] = m.mean;
        rstds[row] = m.rstd;
      }
    });
  });
}

void CpuBackend::add_layer_norm_backward(const DropoutMask& mask, ConstView dy, ConstView sum, ConstView mean,
                                         ConstView rstd, ConstView gamma, View dsum, View dx, View dgamma,
                                         View dbeta, bool accumulate) {
  constexpr auto name = "add_layer_norm_backward";
  const LayerNormSizes s =
      check_add_layer_norm_backward(name, dy, sum, mean, rstd, gamma, dsum, dx, dgamma, dbeta);
  const DropRule rule = drop_rule(name, mask);
  const RowBuffers room(s.width);
  // Per block: partial dgamma and dbeta. Per thread: two rows, random numbers.
  const std::int64_t blocks = ceil_div(s.rows(), row_block), stride = 2 * room.row;
  auto* buffers = reinterpret_cast<float*>(
      scratch(static_cast<std::size_t>(blocks * stride + threads() * room.floats(2)) * sizeof(float)));
  const float* g = gamma.as<float>();
  const float* means = mean.as<float>();
  const float* rstds = rstd.as<float>();
  with_element_type(name, "dy", dy, [&](auto tag) {
    using T = decltype(tag);
    const T* gradient = dy.as<T>();
    const T* sums = sum.as<T>();
    T* out = dsum.as<T>();
    T* dropped = dx.empty() ? nullptr : dx.as<T>();
    parallel_for_threads(threads(), blocks, [&](std::int64_t block, int thread) {
      float* partial = buffers + block * stride;
      float* rows = buffers + blocks * stride + thread * room.floats(2);
      auto* random = reinterpret_cast<std::uint32_t*>(rows + 2 * room.row);
      std::fill_n(partial, 2 * room.row, 0.0f);
      for (std::int64_t row = block * row_block; row < std::min(s.rows(), (block + 1) * row_block); ++row) {
        const std::int64_t at = row * s.width;
        const BackwardRow<T> r{gradient + at, sums + at, means[row],
                               rstds[row],    out + at,  dropped == nullptr ? nullptr : dropped + at};
        const std::uint32_t* words = dropped == nullptr ? nullptr : row_words(mask, s, row, random);
        backward_row(rule, words, r, g, s.width, rows, rows + room.row, partial, partial + room.row);
      }
    });
  });
  combine(threads(), buffers, blocks, stride, s.width, accumulate, dgamma.as<float>());
  combine(threads(), buffers + room.row, blocks, stride, s.width, accumulate, dbeta.as<float>());
}

}  // namespace motley
