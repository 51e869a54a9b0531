// torch.optim.Adam and AdamW, one pass over the arena.
#include <cmath>

#include "kernels/cuda/optimizers/arena_step.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

struct Adam {
  float step_size, root_correction;  // lr / (1 - beta1^step), 1 / sqrt(1 - beta2^step)
  float take1, keep2, take2, eps;
  float shrink, decay;  // AdamW's, Adam's

  __device__ void operator()(float gradient, float (&x)[3]) const {
    auto& [param, mean, square] = x;
    gradient += decay * param;
    mean += take1 * (gradient - mean);
    square = keep2 * square + take2 * gradient * gradient;
    param = param * shrink - step_size * mean / (sqrtf(square) * root_correction + eps);
  }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::adam_step(const AdamOptions& options, ConstView grad, ConstView scale, View param,
                            View exp_avg, View exp_avg_sq) {
  constexpr auto name = "adam_step";
  check_adam_step(name, options, grad, scale, param, exp_avg, exp_avg_sq);

  const auto step = static_cast<double>(options.step);
  const double correction1 = 1 - std::pow(options.beta1, step);
  const double correction2 = 1 - std::pow(options.beta2, step);
  const Adam rule{
      .step_size = static_cast<float>(options.lr / correction1),
      .root_correction = static_cast<float>(1 / std::sqrt(correction2)),
      .take1 = static_cast<float>(1 - options.beta1),
      .keep2 = static_cast<float>(options.beta2),
      .take2 = static_cast<float>(1 - options.beta2),
      .eps = static_cast<float>(options.eps),
      .shrink = options.decoupled ? static_cast<float>(1 - options.lr * options.weight_decay) : 1.0f,
      .decay = options.decoupled ? 0.0f : static_cast<float>(options.weight_decay),
  };
  cuda::arena_step(name, *this, rule, grad, scale, param, exp_avg, exp_avg_sq);
}

}  // namespace motley
