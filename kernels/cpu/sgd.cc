// torch.optim.SGD, one pass over the arena.
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::sgd_step(const SgdOptions& options, ConstView grad, ConstView scale, View param,
                          View momentum) {
  constexpr auto name = "sgd_step";
  const bool with_momentum = options.momentum != 0;
  check_sgd_step(name, options, grad, scale, param, momentum);
  const float factor = *scale.as<float>();
  const auto lr = static_cast<float>(options.lr), decay = static_cast<float>(options.weight_decay);
  const auto mu = static_cast<float>(options.momentum);
  const float keep = options.first_step ? 0.0f : mu;
  const float take = options.first_step ? 1.0f : static_cast<float>(1 - options.dampening);
  const bool nesterov = options.nesterov;
  const float* g = grad.as<float>();
  float* p = param.as<float>();
  float* m = with_momentum ? momentum.as<float>() : nullptr;
  parallel_blocks(threads(), param.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
    if (m == nullptr) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) p[i] -= lr * (g[i] * factor + decay * p[i]);
      return;
    }
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float gradient = g[i] * factor + decay * p[i];
      const float velocity = keep * m[i] + take * gradient;
      m[i] = velocity;
      p[i] -= lr * (nesterov ? gradient + mu * velocity : velocity);
    }
  });
}

}  // namespace motley
