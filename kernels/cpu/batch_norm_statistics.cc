#include "kernels/batch_norm_rule.h"
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
  const BatchNormRule rule{count, eps, momentum};
  for (std::int64_t i = 0; i < c; ++i)
    rule(sum[i], squares[i], means[i], rstds[i], moving_mean[i], moving_var[i]);
}

void CpuBackend::batch_norm_running(ConstView running_var, double eps, View rstd) {
  const std::int64_t c = check_batch_norm_running("batch_norm_running", running_var, rstd);
  const float* variance = running_var.as<float>();
  auto* rstds = rstd.as<float>();
  for (std::int64_t i = 0; i < c; ++i)
    rstds[i] = BatchNormRule::rstd_of(static_cast<double>(variance[i]), eps);
}

}  // namespace motley
