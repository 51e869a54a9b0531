#include <cmath>

#include "kernels/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {

// Sums formed side by side: a single one would wait for each of its additions.
constexpr int sum_lanes = 64;

void CpuBackend::sum_squares(ConstView x, View sum) {
  check_dtype("sum_squares", "x", x, DType::f32);
  check_length("sum_squares", "sum", sum, DType::f64, 1);
  const float* values = x.as<float>();
  const std::int64_t blocks = ceil_div(x.elements(), elementwise_block);
  auto* partial = reinterpret_cast<double*>(scratch(static_cast<std::size_t>(blocks) * sizeof(double)));
  parallel_blocks(threads(), x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
    double lane[sum_lanes] = {};
    std::int64_t i = begin;
    for (; i + sum_lanes <= end; i += sum_lanes) {
#pragma omp simd
      for (int l = 0; l < sum_lanes; ++l) {
        const auto value = static_cast<double>(values[i + l]);
        lane[l] += value * value;
      }
    }
    for (; i < end; ++i) lane[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    double block_sum = 0;
    for (const double part : lane) block_sum += part;
    partial[begin / elementwise_block] = block_sum;
  });
  double total = 0;
  for (std::int64_t block = 0; block < blocks; ++block) total += partial[block];
  *sum.as<double>() = total;
}

void CpuBackend::scale(double factor, View x) {
  check_dtype("scale", "x", x, DType::f32);
  auto* values = x.as<float>();
  parallel_blocks(threads(), x.elements(), elementwise_block, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i)
      values[i] = static_cast<float>(factor * static_cast<double>(values[i]));
  });
}

void CpuBackend::gradient_scale(ConstView sum_squares, ConstView count, float clip_norm, View out) {
  constexpr auto name = "gradient_scale";
  check_gradient_scale(name, sum_squares, count, out);
  const double samples = *count.as<double>();
  double norm = 0, factor = 0;
  if (samples != 0) {
    norm = std::sqrt(*sum_squares.as<double>()) / samples;
    factor = 1 / samples;
    if (clip_norm > 0) {
      const double shrink = static_cast<double>(clip_norm) / (norm + 1e-6);
      if (!(shrink >= 1))
        factor *= shrink;  // a NaN norm gives a NaN scale: it must not look like a sound step
    }
  }
  out.as<float>()[0] = static_cast<float>(factor);
  out.as<float>()[1] = static_cast<float>(norm);
}

}  // namespace motley
