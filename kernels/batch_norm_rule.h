// From the sums of a channel over a batch to its statistics, with the same bits on every device: files that use it are
// compiled so that each operation is rounded.
#pragma once

#include <cmath>

#include "core/philox.h"

namespace motley {

struct BatchNormRule {
  double count, eps, momentum;

  // 1 / sqrt(variance + eps)
  MOTLEY_HOST_DEVICE static float rstd_of(double variance, double eps) {
    return static_cast<float>(1 / sqrt(variance + eps));
  }

  // sum and squares: of x and of x^2. Moves the running statistics.
  MOTLEY_HOST_DEVICE void operator()(double sum, double squares, float& mean, float& rstd,
                                     float& running_mean, float& running_var) const {
    const double keep = 1 - momentum, unbiased = count / (count - 1);
    const double average = sum / count;
    const double difference = squares / count - average * average;
    const double variance = difference < 0 ? 0 : difference;  // NaN stays NaN
    mean = static_cast<float>(average);
    rstd = rstd_of(variance, eps);
    running_mean = static_cast<float>(keep * static_cast<double>(running_mean) + momentum * average);
    running_var =
        static_cast<float>(keep * static_cast<double>(running_var) + momentum * (variance * unbiased));
  }
};

}  // namespace motley
