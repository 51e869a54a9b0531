// torch.optim.Adadelta (Zeiler, "ADADELTA: an adaptive learning rate method", 2012), one pass over the arena.
#include "kernels/cuda/optimizers/arena_step.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

struct Adadelta {
  float lr, keep, take, eps, decay;

  __device__ void operator()(float gradient, float (&x)[3]) const {
    auto& [param, square, acc_delta] = x;
    gradient += decay * param;
    square = keep * square + take * gradient * gradient;
    const float delta = sqrtf((acc_delta + eps) / (square + eps)) * gradient;
    acc_delta = keep * acc_delta + take * delta * delta;
    param -= lr * delta;
  }
};

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::adadelta_step(const AdadeltaOptions& options, ConstView grad, ConstView scale, View param,
                                View square_avg, View acc_delta) {
  constexpr auto name = "adadelta_step";
  check_adadelta_step(name, grad, scale, param, square_avg, acc_delta);
  const Adadelta rule{
      .lr = static_cast<float>(options.lr),
      .keep = static_cast<float>(options.rho),
      .take = static_cast<float>(1 - options.rho),
      .eps = static_cast<float>(options.eps),
      .decay = static_cast<float>(options.weight_decay),
  };
  cuda::arena_step(name, *this, rule, grad, scale, param, square_avg, acc_delta);
}

}  // namespace motley
