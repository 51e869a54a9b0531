#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/operation_checks.h"

namespace motley {

void CpuBackend::batch_norm_statistics(ConstView sums, double count, double eps, double momentum, View mean,
                                       View rstd, View running_mean, View running_var) {
  const std::int64_t c = check_batch_norm_statistics("batch_norm_statistics", sums, count, mean, rstd,
                                                     running_mean, running_var);
  const double* sum = sums.as<double>();
  const double* squares = sum + c;
  auto *means = mean.as<float>(), *rstds = rstd.as<float>();
  auto *moving_mean = running_mean.as<float>(), *moving_var = running_var.as<float>();
  const double keep = 1 - momentum, unbiased = count / (count - 1);
  for (std::int64_t i = 0; i < c; ++i) {
    const double average = sum[i] / count;
    const double difference = squares[i] / count - average * average;
    const double variance = difference < 0 ? 0 : difference;  // NaN stays NaN
    means[i] = static_cast<float>(average);
    rstds[i] = static_cast<float>(1 / std::sqrt(variance + eps));
    moving_mean[i] = static_cast<float>(keep * static_cast<double>(moving_mean[i]) + momentum * average);
    moving_var[i] =
        static_cast<float>(keep * static_cast<double>(moving_var[i]) + momentum * (variance * unbiased));
  }
}

void CpuBackend::batch_norm_running(ConstView running_var, double eps, View rstd) {
  const std::int64_t c = check_batch_norm_running("batch_norm_running", running_var, rstd);
  const float* variance = running_var.as<float>();
  auto* rstds = rstd.as<float>();
  for (std::int64_t i = 0; i < c; ++i)
    rstds[i] = static_cast<float>(1 / std::sqrt(static_cast<double>(variance[i]) + eps));
}

}  // namespace motley
