// torch.optim.Adam and AdamW, one pass over the arena.
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::adam_step(const AdamOptions& options, ConstView grad, ConstView scale, View param,
                           View exp_avg, View exp_avg_sq) {
  constexpr auto name = "adam_step";
  check_adam_step(name, options, grad, scale, param, exp_avg, exp_avg_sq);

  const auto step = static_cast<double>(options.step);
  const double correction1 = 1 - std::pow(options.beta1, step);
  const double correction2 = 1 - std::pow(options.beta2, step);
  const auto step_size = static_cast<float>(options.lr / correction1);
  const auto root_correction = static_cast<float>(1 / std::sqrt(correction2));
  const auto take1 = static_cast<float>(1 - options.beta1);
  const auto keep2 = static_cast<float>(options.beta2), take2 = static_cast<float>(1 - options.beta2);
  const auto eps = static_cast<float>(options.eps);
  // Either the weights shrink by themselves (AdamW) or the decay is part of the gradient (Adam).
  const float shrink = options.decoupled ? static_cast<float>(1 - options.lr * options.weight_decay) : 1.0f;
  const float decay = options.decoupled ? 0.0f : static_cast<float>(options.weight_decay);
  const float factor = *scale.as<float>();
  const float* g = grad.as<float>();
  float* p = param.as<float>();
  float* m = exp_avg.as<float>();
  float* v = exp_avg_sq.as<float>();
  parallel_blocks(threads(), param.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float gradient = g[i] * factor + decay * p[i];
      const float mean = m[i] + take1 * (gradient - m[i]);
      const float square = keep2 * v[i] + take2 * gradient * gradient;
      m[i] = mean;
      v[i] = square;
      p[i] = p[i] * shrink - step_size * mean / (std::sqrt(square) * root_correction + eps);
    }
  });
}

}  // namespace motley
