// torch.optim.Adadelta (Zeiler, "ADADELTA: an adaptive learning rate method", 2012), one pass over the arena.
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::adadelta_step(const AdadeltaOptions& options, ConstView grad, ConstView scale, View param,
                               View square_avg, View acc_delta) {
  constexpr auto name = "adadelta_step";
  check_adadelta_step(name, grad, scale, param, square_avg, acc_delta);

  const auto lr = static_cast<float>(options.lr), eps = static_cast<float>(options.eps);
  const auto keep = static_cast<float>(options.rho), take = static_cast<float>(1 - options.rho);
  const auto decay = static_cast<float>(options.weight_decay);
  const float factor = *scale.as<float>();
  const float* g = grad.as<float>();
  float* p = param.as<float>();
  float* squares = square_avg.as<float>();
  float* deltas = acc_delta.as<float>();
  parallel_blocks(threads(), param.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float gradient = g[i] * factor + decay * p[i];
      const float square = keep * squares[i] + take * gradient * gradient;
      const float delta = std::sqrt((deltas[i] + eps) / (square + eps)) * gradient;
      squares[i] = square;
      deltas[i] = keep * deltas[i] + take * delta * delta;
      p[i] -= lr * delta;
    }
  });
}

}  // namespace motley
