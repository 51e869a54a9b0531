// From sums over a batch to its statistics, a thread per channel. Each operation is rounded, as on CPUs.
#include "kernels/batch_norm_rule.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

struct Statistics {
  float *mean, *rstd, *running_mean, *running_var;
};

__global__ void __launch_bounds__(cuda::elementwise_threads)
    statistics_kernel(std::int64_t c, const double* sums, BatchNormRule rule, Statistics s) {
  for (std::int64_t i = cuda::global_thread(); i < c; i += cuda::global_threads())
    rule(sums[i], sums[c + i], s.mean[i], s.rstd[i], s.running_mean[i], s.running_var[i]);
}

__global__ void __launch_bounds__(cuda::elementwise_threads)
    running_kernel(std::int64_t c, const float* running_var, double eps, float* rstd) {
  for (std::int64_t i = cuda::global_thread(); i < c; i += cuda::global_threads())
    rstd[i] = BatchNormRule::rstd_of(static_cast<double>(running_var[i]), eps);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::batch_norm_statistics(ConstView sums, double count, double eps, double momentum, View mean,
                                        View rstd, View running_mean, View running_var) {
  constexpr auto name = "batch_norm_statistics";
  const std::int64_t c =
      check_batch_norm_statistics(name, sums, count, mean, rstd, running_mean, running_var);
  cuda::launch(
      name, statistics_kernel, cuda::grid_for(*this, c), stream(), c, sums.as<double>(),
      BatchNormRule{count, eps, momentum},
      Statistics{mean.as<float>(), rstd.as<float>(), running_mean.as<float>(), running_var.as<float>()});
}

void CudaBackend::batch_norm_running(ConstView running_var, double eps, View rstd) {
  constexpr auto name = "batch_norm_running";
  const std::int64_t c = check_batch_norm_running(name, running_var, rstd);
  cuda::launch(name, running_kernel, cuda::grid_for(*this, c), stream(), c, running_var.as<float>(), eps,
               rstd.as<float>());
}

}  // namespace motley
