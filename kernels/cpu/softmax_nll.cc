// Log-softmax, negative log-likelihood and accuracy in one pass over the logits.
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

constexpr std::int64_t row_block = 16;  // rows whose sums are added up together
constexpr int sum_count = 4;            // loss, rows counted, best hits, top-k hits

// One row: adds to `sums`, and writes the gradient unless it is null. `gradient` may be `logits`.
void row_loss(const float* logits, std::int64_t classes, std::int32_t label, int top_k, double* sums,
              float* gradient) {
  float highest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : highest)
  for (std::int64_t c = 0; c < classes; ++c) highest = logits[c] > highest ? logits[c] : highest;
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t c = 0; c < classes; ++c) total += static_cast<double>(vector_exp(logits[c] - highest));

  const float chosen = logits[label];
  std::int64_t ahead = 0;  // classes ranked before the label
  for (std::int64_t c = 0; c < classes; ++c) {
    ahead += logits[c] > chosen || (logits[c] == chosen && c < label) ? 1 : 0;
  }
  sums[0] += std::log(total) + static_cast<double>(highest) - static_cast<double>(chosen);
  sums[1] += 1;
  if (!std::isnan(total)) {
    sums[2] += ahead == 0 ? 1 : 0;
    sums[3] += ahead < top_k ? 1 : 0;
  }
  if (gradient == nullptr) return;
  const auto inverse = static_cast<float>(1.0 / total);
#pragma omp simd
  for (std::int64_t c = 0; c < classes; ++c) gradient[c] = vector_exp(logits[c] - highest) * inverse;
  gradient[label] -= 1.0f;
}

}  // namespace

void CpuBackend::softmax_nll(ConstView logits, ConstView labels, int top_k, View sums, View dlogits) {
  constexpr auto name = "softmax_nll";
  check_rank(name, "logits", logits, DType::f32, 2);
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];
  check_view(name, "labels", labels, DType::i32, Shape{rows});
  check_view(name, "sums", sums, DType::f64, Shape{sum_count});
  if (!dlogits.empty()) check_view(name, "dlogits", dlogits, DType::f32, logits.shape);
  MOTLEY_CHECK(classes > 0 && top_k >= 1);

  const float* in = logits.as<float>();
  const std::int32_t* label = labels.as<std::int32_t>();
  float* gradient = dlogits.empty() ? nullptr : dlogits.as<float>();
  const std::int64_t blocks = ceil_div(rows, row_block);
  auto* partial =
      reinterpret_cast<double*>(scratch(static_cast<std::size_t>(blocks * sum_count) * sizeof(double)));
  std::atomic<std::int64_t> wrong_row{-1};
  parallel_for(threads(), blocks, [&](std::int64_t block) {
    double* block_sums = partial + block * sum_count;
    std::fill_n(block_sums, sum_count, 0.0);
    for (std::int64_t row = block * row_block; row < std::min(rows, (block + 1) * row_block); ++row) {
      float* row_gradient = gradient == nullptr ? nullptr : gradient + row * classes;
      if (label[row] >= 0 && label[row] < classes) {
        row_loss(in + row * classes, classes, label[row], top_k, block_sums, row_gradient);
      } else {
        if (label[row] != -1) wrong_row = row;
        if (row_gradient != nullptr) std::fill_n(row_gradient, classes, 0.0f);
      }
    }
  });
  if (wrong_row >= 0) {
    fail(ExitCode::internal,
         "{}: the label of row {} is {}, but there are {} classes, from 0, and -1 for none", name,
         wrong_row.load(), label[wrong_row], classes);
  }
  double* result = sums.as<double>();
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (int i = 0; i < sum_count; ++i) result[i] += partial[block * sum_count + i];
  }
}

}  // namespace motley
