// Batch normalisation, channels-last. Every operation is one pass over memory, in tasks of neighbouring rows whose
// coefficients, or sums, stay in the first cache.
#include <algorithm>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t least_columns = 256, most_columns = 512;  // of a task
constexpr std::int64_t task_rows = 256;
constexpr std::int64_t run_rows = 32;  // added up in float32 before float64 takes over

// Wide rows [begin, end) of columns [column, column + columns).
struct Task {
  std::int64_t block, begin, end, column, columns;
};

// A tensor as wide rows: `together` neighbouring rows of few channels are one, so that every loop over columns is
// long. The last wide row may be a part of one.
struct WideRows {
  explicit WideRows(const BatchNormSizes& s)
      : c(s.c),
        together(ceil_div(least_columns, c)),
        width(together * c),
        elements(s.rows * c),
        rows(ceil_div(elements, width)),
        blocks(ceil_div(rows, task_rows)) {}

  // Of columns in one task: chunks of a wide row are as equal as whole vectors allow.
  std::int64_t chunk() const { return ceil_div(ceil_div(width, ceil_div(width, most_columns)), 16) * 16; }
  // Elements of a task's part of one of its rows.
  std::int64_t length(const Task& t, std::int64_t row) const {
    return std::clamp<std::int64_t>(elements - row * width - t.column, 0, t.columns);
  }

  std::int64_t c, together, width, elements, rows, blocks;
};

template <class Body>
void for_tasks(int threads, const WideRows& wide, const Body& body) {
  const std::int64_t chunk = wide.chunk(), chunks = ceil_div(wide.width, chunk);
  parallel_for(threads, wide.blocks * chunks, [&](std::int64_t index) {
    const std::int64_t block = index / chunks, column = index % chunks * chunk;
    body(Task{block, block * task_rows, std::min((block + 1) * task_rows, wide.rows), column,
              std::min(chunk, wide.width - column)});
  });
}

// A number per column of a task.
template <class T>
using Columns = T[most_columns];

// to[i] = of_channel(channel of the task's column i).
template <class F>
void spread(const WideRows& wide, const Task& t, const F& of_channel, Columns<float>& to) {
  const std::int64_t once = std::min(t.columns, wide.c);
  for (std::int64_t i = 0; i < once; ++i) to[i] = of_channel(t.column + i);
  for (std::int64_t i = once; i < t.columns; ++i) to[i] = to[i - wide.c];
}

// --- Sums over rows ---------------------------------------------------------------------------------------

struct Pair {
  float first, second;
};

// One row after the other: several at once would load and store fewer sums, but memory is read ahead for one stream
// much better than for several.
template <class Terms>
void add_row(const Terms& terms, std::int64_t at, std::int64_t length, float* first, float* second) {
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i) {
    const Pair term = terms(at + i, i);
    first[i] += term.first;
    second[i] += term.second;
  }
}

// out (float64 [2, c]): the sums of what terms(element, column) gives for the task's channels.
// finish(column, count, sums) makes of a column's two sums over `count` elements what belongs into out.
template <class Terms, class Finish>
void sum_task(const WideRows& wide, const Task& t, const Terms& terms, const Finish& finish, double* out) {
  Columns<float> first, second;
  Columns<double> total_first, total_second;
  std::fill_n(total_first, t.columns, 0.0);
  std::fill_n(total_second, t.columns, 0.0);
  const std::int64_t last = wide.length(t, t.end - 1);  // the row that may be a part of one
  const std::int64_t whole = last < t.columns ? t.end - 1 : t.end;
  for (std::int64_t run = t.begin; run < t.end; run += run_rows) {
    std::fill_n(first, t.columns, 0.0f);
    std::fill_n(second, t.columns, 0.0f);
    for (std::int64_t row = run; row < std::min(run + run_rows, t.end); ++row)
      add_row(terms, row * wide.width + t.column, row < whole ? t.columns : last, first, second);
#pragma omp simd
    for (std::int64_t i = 0; i < t.columns; ++i) {
      total_first[i] += static_cast<double>(first[i]);
      total_second[i] += static_cast<double>(second[i]);
    }
  }
  // Columns of one channel are added up in order.
  for (std::int64_t i = 0; i < t.columns; ++i) {
    const auto count = static_cast<double>(whole - t.begin + (whole < t.end && i < last ? 1 : 0));
    finish(i, count, total_first[i], total_second[i]);
    double* const to = out + t.column + i % wide.c;
    to[0] = (i < wide.c ? 0 : to[0]) + total_first[i];
    to[wide.c] = (i < wide.c ? 0 : to[wide.c]) + total_second[i];
  }
}

// sums [width] = the sum of partial [blocks, width], in order.
void add_blocks(int threads, const double* partial, std::int64_t blocks, std::int64_t width, double* sums) {
  constexpr std::int64_t columns = 64;
  parallel_blocks(threads, width, columns, [&](std::int64_t begin, std::int64_t end) {
    double sum[columns] = {};
    const auto count = static_cast<int>(end - begin);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const double* terms = partial + block * width + begin;
#pragma omp simd
      for (int i = 0; i < count; ++i) sum[i] += terms[i];
    }
    std::copy_n(sum, count, sums + begin);
  });
}

// --- Coefficients and derivatives -------------------------------------------------------------------------

// (x - mean) * scale + beta with scale = rstd * gamma. One expression for both passes: backward, relu is to find
// the sign that it had forward.
struct Affine {
  const float *mean, *rstd, *gamma, *beta;

  explicit Affine(const BatchNormViews& views)
      : mean(views.mean.as<float>()),
        rstd(views.rstd.as<float>()),
        gamma(views.gamma.as<float>()),
        beta(views.beta.as<float>()) {}

  void spread_over(const WideRows& wide, const Task& t, Columns<float>& means, Columns<float>& scales,
                   Columns<float>& betas) const {
    spread(
        wide, t, [&](std::int64_t i) { return mean[i]; }, means);
    spread(
        wide, t, [&](std::int64_t i) { return rstd[i] * gamma[i]; }, scales);
    spread(
        wide, t, [&](std::int64_t i) { return beta[i]; }, betas);
  }
};

inline float affine(float x, float mean, float scale, float beta) {
  return (x - mean) * scale + beta;
}

// g = dy * activation' of a value z before the activation, or of the y that became of it.
struct PassedOn {
  static float gradient(float, float, float dy) { return dy; }
};
struct ReluOfY {
  static float gradient(float, float y, float dy) { return y > 0.0f ? dy : 0.0f; }
};
struct ReluOfZ {
  static float gradient(float z, float, float dy) { return z > 0.0f ? dy : 0.0f; }
};
struct SwishOfZ {
  static float gradient(float z, float, float dy) { return dy * Swish::derivative(z); }
};

// The activations that check_batch_norm_forward lets through.
template <class Body>
void with_output(Activation activation, const Body& body) {
  if (activation == Activation::relu) return body(Relu{});
  return activation == Activation::swish ? body(Swish{}) : body(Identity{});
}

template <class Body>
void with_gradient(Activation activation, const ConstView& y, const Body& body) {
  if (activation == Activation::relu) return y.empty() ? body(ReluOfZ{}) : body(ReluOfY{});
  return activation == Activation::swish ? body(SwishOfZ{}) : body(PassedOn{});
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CpuBackend::batch_norm_sums(ConstView x, View sums) {
  constexpr auto name = "batch_norm_sums";
  const WideRows wide(check_batch_norm_sums(name, x, sums));
  auto* partial =
      reinterpret_cast<double*>(scratch(static_cast<std::size_t>(wide.blocks * 2 * wide.c) * sizeof(double)));
  with_element_type(name, "x", x, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.as<T>();
    for_tasks(threads(), wide, [&](const Task& t) {
      // Each column around its first value.
      Columns<float> pivot = {};
      const T* row = in + t.begin * wide.width + t.column;
      for (std::int64_t i = 0; i < wide.length(t, t.begin); ++i) pivot[i] = to_float(row[i]);
      const auto terms = [&](std::int64_t element, std::int64_t i) {
        const float difference = to_float(in[element]) - pivot[i];
        return Pair{difference, difference * difference};
      };
      const auto moved_to_zero = [&](std::int64_t i, double count, double& sum, double& squares) {
        const auto p = static_cast<double>(pivot[i]);
        squares += p * (2 * sum + count * p);
        sum += count * p;
      };
      sum_task(wide, t, terms, moved_to_zero, partial + t.block * 2 * wide.c);
    });
  });
  add_blocks(threads(), partial, wide.blocks, 2 * wide.c, sums.as<double>());
}

void CpuBackend::batch_norm_forward(Activation activation, ConstView x, ConstView residual, ConstView mean,
                                    ConstView rstd, ConstView gamma, ConstView beta, View y) {
  constexpr auto name = "batch_norm_forward";
  const BatchNormViews views{activation, x, mean, rstd, gamma, beta};
  const WideRows wide(check_batch_norm_forward(name, views, residual, y));
  const Affine coefficients(views);
  with_element_type(name, "x", x, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.as<T>();
    const T* added = residual.empty() ? nullptr : residual.as<T>();
    T* out = y.as<T>();
    with_output(activation, [&](auto function) {
      for_tasks(threads(), wide, [&](const Task& t) {
        Columns<float> means, scales, betas;
        coefficients.spread_over(wide, t, means, scales, betas);
        for (std::int64_t row = t.begin; row < t.end; ++row) {
          const std::int64_t at = row * wide.width + t.column, length = wide.length(t, row);
          const T* from = in + at;
          T* to = out + at;
          if (added == nullptr) {
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) {
              const float z = affine(to_float(from[i]), means[i], scales[i], betas[i]);
              to[i] = from_float<T>(function.value(z));
            }
          } else {
            const T* plus = added + at;
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) {
              const float z = affine(to_float(from[i]), means[i], scales[i], betas[i]);
              to[i] = from_float<T>(function.value(z + to_float(plus[i])));
            }
          }
        }
      });
    });
  });
}

void CpuBackend::batch_norm_backward_sums(Activation activation, ConstView x, ConstView y, ConstView dy,
                                          ConstView mean, ConstView rstd, ConstView gamma, ConstView beta,
                                          View sums, View dgamma, View dbeta, bool accumulate) {
  constexpr auto name = "batch_norm_backward_sums";
  const BatchNormViews views{activation, x, mean, rstd, gamma, beta};
  const WideRows wide(check_batch_norm_backward_sums(name, views, y, dy, sums, dgamma, dbeta));
  const Affine coefficients(views);
  auto* partial =
      reinterpret_cast<double*>(scratch(static_cast<std::size_t>(wide.blocks * 2 * wide.c) * sizeof(double)));
  with_element_type(name, "x", x, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.as<T>();
    const T* gradients = dy.as<T>();
    const T* outputs = y.empty() ? gradients : y.as<T>();
    with_gradient(activation, y, [&](auto rule) {
      for_tasks(threads(), wide, [&](const Task& t) {
        Columns<float> means, scales, betas;
        coefficients.spread_over(wide, t, means, scales, betas);
        const auto terms = [&](std::int64_t element, std::int64_t i) {
          const float value = to_float(in[element]);
          const float z = affine(value, means[i], scales[i], betas[i]);
          const float g = rule.gradient(z, to_float(outputs[element]), to_float(gradients[element]));
          return Pair{g, g * (value - means[i])};
        };
        const auto normalised = [&](std::int64_t i, double, double&, double& product) {
          product *= static_cast<double>(coefficients.rstd[t.column + i % wide.c]);
        };
        sum_task(wide, t, terms, normalised, partial + t.block * 2 * wide.c);
      });
    });
  });
  auto* results = sums.as<double>();
  add_blocks(threads(), partial, wide.blocks, 2 * wide.c, results);
  auto *of_gamma = dgamma.as<float>(), *of_beta = dbeta.as<float>();
  for (std::int64_t i = 0; i < wide.c; ++i) {
    of_beta[i] = static_cast<float>(results[i]) + (accumulate ? of_beta[i] : 0.0f);
    of_gamma[i] = static_cast<float>(results[wide.c + i]) + (accumulate ? of_gamma[i] : 0.0f);
  }
}

void CpuBackend::batch_norm_backward(Activation activation, ConstView x, ConstView y, ConstView dy,
                                     ConstView mean, ConstView rstd, ConstView gamma, ConstView beta,
                                     ConstView sums, double count, View dx, View dresidual) {
  constexpr auto name = "batch_norm_backward";
  const BatchNormViews views{activation, x, mean, rstd, gamma, beta};
  const WideRows wide(check_batch_norm_backward(name, views, y, dy, sums, count, dx, dresidual));
  const Affine coefficients(views);
  const double* sum = sums.as<double>();
  with_element_type(name, "x", x, [&](auto tag) {
    using T = decltype(tag);
    const T* in = x.as<T>();
    const T* gradients = dy.as<T>();
    const T* outputs = y.empty() ? gradients : y.as<T>();
    T* results = dx.as<T>();
    T* passed = dresidual.empty() ? nullptr : dresidual.as<T>();
    with_gradient(activation, y, [&](auto rule) {
      for_tasks(threads(), wide, [&](const Task& t) {
        // dx = scale * (g - level - (x - mean) * slope)
        Columns<float> means, scales, betas, levels, slopes;
        coefficients.spread_over(wide, t, means, scales, betas);
        spread(
            wide, t, [&](std::int64_t i) { return static_cast<float>(sum[i] / count); }, levels);
        spread(
            wide, t,
            [&](std::int64_t i) {
              return static_cast<float>(static_cast<double>(coefficients.rstd[i]) * sum[wide.c + i] / count);
            },
            slopes);
        for (std::int64_t row = t.begin; row < t.end; ++row) {
          const std::int64_t at = row * wide.width + t.column, length = wide.length(t, row);
          const T *values = in + at, *after = outputs + at, *from = gradients + at;
          T* to = results + at;
          const auto g_of = [&](std::int64_t i) {
            const float z = affine(to_float(values[i]), means[i], scales[i], betas[i]);
            return rule.gradient(z, to_float(after[i]), to_float(from[i]));
          };
          const auto dx_of = [&](std::int64_t i, float g) {
            return scales[i] * (g - levels[i] - (to_float(values[i]) - means[i]) * slopes[i]);
          };
          if (passed == nullptr) {
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) to[i] = from_float<T>(dx_of(i, g_of(i)));
          } else {
            T* also = passed + at;
#pragma omp simd
            for (std::int64_t i = 0; i < length; ++i) {
              const float g = g_of(i),
                          result = dx_of(i, g);  // before the stores, which may be to values or from
              to[i] = from_float<T>(result);
              also[i] = from_float<T>(g);
            }
          }
        }
      });
    });
  });
}

}  // namespace motley
