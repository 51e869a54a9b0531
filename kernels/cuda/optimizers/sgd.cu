// torch.optim.SGD, one pass over the arena.
#include "kernels/cuda/optimizers/arena_step.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

struct Sgd {
  float lr, decay;

  __device__ void operator()(float gradient, float (&x)[1]) const { x[0] -= lr * (gradient + decay * x[0]); }
};

struct SgdWithMomentum {
  float lr, decay;
  float keep, take;  // of the velocity, of the gradient
  float momentum;
  bool nesterov;

  __device__ void operator()(float gradient, float (&x)[2]) const {
    auto& [param, velocity] = x;
    gradient += decay * param;
    velocity = keep * velocity + take * gradient;
    param -= lr * (nesterov ? gradient + momentum * velocity : velocity);
  }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::sgd_step(const SgdOptions& options, ConstView grad, ConstView scale, View param,
                           View momentum) {
  constexpr auto name = "sgd_step";
  const bool with_momentum = options.momentum != 0;
  check_sgd_step(name, options, grad, scale, param, momentum);
  const auto lr = static_cast<float>(options.lr), decay = static_cast<float>(options.weight_decay);
  if (!with_momentum) {
    cuda::arena_step(name, *this, Sgd{lr, decay}, grad, scale, param);
    return;
  }
  const auto mu = static_cast<float>(options.momentum);
  const float keep = options.first_step ? 0.0f : mu;
  const float take = options.first_step ? 1.0f : static_cast<float>(1 - options.dampening);
  cuda::arena_step(name, *this, SgdWithMomentum{lr, decay, keep, take, mu, options.nesterov}, grad, scale,
                   param, momentum);
}

}  // namespace motley
