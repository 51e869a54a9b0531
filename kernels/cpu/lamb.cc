// LAMB, tensor by tensor: one pass for the moments and the norms, a second for the step.
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

struct Rule {
  float factor;  // of the gradient
  float keep1, take1, keep2, take2;
  float correction1, root_correction;  // 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step)
  float eps;

  float direction(float mean, float square, float param, float decay) const {
    return mean * correction1 / (std::sqrt(square) * root_correction + eps) + decay * param;
  }
};

struct Norms {
  double param = 0, direction = 0;  // squared
};

struct Tensor {
  const float* grad;
  float* param;
  float* mean;
  float* square;
  std::int64_t elements;
  float decay;
};

// New moments; norms of the parameters and of their direction, one pair per block in `partial`.
Norms update_moments(int threads, const Rule& rule, const Tensor& t, Norms* partial) {
  parallel_blocks(threads, t.elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
    double param_norm = 0, direction_norm = 0;
#pragma omp simd reduction(+ : param_norm, direction_norm)
    for (std::int64_t i = begin; i < end; ++i) {
      const float gradient = t.grad[i] * rule.factor;
      const float mean = rule.keep1 * t.mean[i] + rule.take1 * gradient;
      const float square = rule.keep2 * t.square[i] + rule.take2 * gradient * gradient;
      t.mean[i] = mean;
      t.square[i] = square;
      const auto direction = static_cast<double>(rule.direction(mean, square, t.param[i], t.decay));
      const auto param = static_cast<double>(t.param[i]);
      param_norm += param * param;
      direction_norm += direction * direction;
    }
    partial[begin / elementwise_block] = {param_norm, direction_norm};
  });
  Norms total;
  for (std::int64_t block = 0; block < ceil_div(t.elements, elementwise_block); ++block) {
    total.param += partial[block].param;
    total.direction += partial[block].direction;
  }
  return total;
}

void move_parameters(int threads, const Rule& rule, const Tensor& t, float step) {
  parallel_blocks(threads, t.elements, elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      t.param[i] -= step * rule.direction(t.mean[i], t.square[i], t.param[i], t.decay);
    }
  });
}

}  // namespace

void CpuBackend::lamb_step(const LambOptions& options, std::span<const Segment> host_segments, ConstView grad,
                           ConstView scale, View param, View exp_avg, View exp_avg_sq) {
  constexpr auto name = "lamb_step";
  check_lamb_step(name, options, host_segments, grad, scale, param, exp_avg, exp_avg_sq);
  const auto step = static_cast<double>(options.step);
  const Rule rule{*scale.as<float>(),
                  static_cast<float>(options.beta1),
                  static_cast<float>(1 - options.beta1),
                  static_cast<float>(options.beta2),
                  static_cast<float>(1 - options.beta2),
                  static_cast<float>(1 / (1 - std::pow(options.beta1, step))),
                  static_cast<float>(1 / std::sqrt(1 - std::pow(options.beta2, step))),
                  static_cast<float>(options.eps)};
  auto* partial = reinterpret_cast<Norms*>(
      scratch(static_cast<std::size_t>(ceil_div(param.elements(), elementwise_block)) * sizeof(Norms)));
  for (const Segment& segment : host_segments) {
    const Tensor t{grad.as<float>() + segment.offset,           param.as<float>() + segment.offset,
                   exp_avg.as<float>() + segment.offset,        exp_avg_sq.as<float>() + segment.offset,
                   static_cast<std::int64_t>(segment.elements), static_cast<float>(segment.weight_decay)};
    const Norms norms = update_moments(threads(), rule, t, partial);
    double trust = 1;
    if (segment.adapts && norms.param > 0 && norms.direction > 0) {
      trust = std::sqrt(norms.param / norms.direction);
    }
    move_parameters(threads(), rule, t, static_cast<float>(options.lr * trust));
  }
}

}  // namespace motley
