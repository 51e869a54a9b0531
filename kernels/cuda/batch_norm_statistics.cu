// From sums over a batch to its statistics, a thread per channel. Each operation is rounded, as on CPUs.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

struct Statistics {
  float *mean, *rstd, *running_mean, *running_var;
};

__global__ void __launch_bounds__(cuda::elementwise_threads)
    statistics_kernel(std::int64_t c, const double* sums, double count, double eps, double momentum,
                      Statistics s) {
  const double keep = 1 - momentum, unbiased = count / (count - 1);
  for (std::int64_t i = cuda::global_thread(); i < c; i += cuda::global_threads()) {
    const double average = sums[i] / count;
    const double difference = sums[c + i] / count - average * average;
    const double variance = difference < 0 ? 0 : difference;  // NaN stays NaN
    s.mean[i] = static_cast<float>(average);
    s.rstd[i] = static_cast<float>(1 / sqrt(variance + eps));
    s.running_mean[i] =
        static_cast<float>(keep * static_cast<double>(s.running_mean[i]) + momentum * average);
    s.running_var[i] =
        static_cast<float>(keep * static_cast<double>(s.running_var[i]) + momentum * (variance * unbiased));
  }
}

__global__ void __launch_bounds__(cuda::elementwise_threads)
    running_kernel(std::int64_t c, const float* running_var, double eps, float* rstd) {
  for (std::int64_t i = cuda::global_thread(); i < c; i += cuda::global_threads())
    rstd[i] = static_cast<float>(1 / sqrt(static_cast<double>(running_var[i]) + eps));
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void CudaBackend::batch_norm_statistics(ConstView sums, double count, double eps, double momentum, View mean,
                                        View rstd, View running_mean, View running_var) {
  constexpr auto name = "batch_norm_statistics";
  const std::int64_t c =
      check_batch_norm_statistics(name, sums, count, mean, rstd, running_mean, running_var);
  cuda::launch(
      name, statistics_kernel, cuda::grid_for(*this, c), stream(), c, sums.as<double>(), count, eps, momentum,
      Statistics{mean.as<float>(), rstd.as<float>(), running_mean.as<float>(), running_var.as<float>()});
}

void CudaBackend::batch_norm_running(ConstView running_var, double eps, View rstd) {
  constexpr auto name = "batch_norm_running";
  const std::int64_t c = check_batch_norm_running(name, running_var, rstd);
  cuda::launch(name, running_kernel, cuda::grid_for(*this, c), stream(), c, running_var.as<float>(), eps,
               rstd.as<float>());
}

}  // namespace motley
