// Log-softmax, negative log-likelihood and accuracy in one pass over the logits.
#include <atomic>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/element_type.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/parallel.h"
#include "kernels/operation_checks.h"

namespace motley {
namespace {

constexpr std::int64_t row_block = 16;  // rows whose sums are added up together
constexpr int sum_count = 4;            // loss, rows counted, best hits, top-k hits

// One row: adds to `sums`, and writes the gradient unless it is null. `gradient` may be `logits`.
template <class T>
void row_loss(const float* logits, std::int64_t classes, std::int32_t label, int top_k, float weight,
              double* sums, T* gradient) {
  float highest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : highest)
  for (std::int64_t c = 0; c < classes; ++c) highest = logits[c] > highest ? logits[c] : highest;
  double total = 0;
#pragma omp simd reduction(+ : total)
  for (std::int64_t c = 0; c < classes; ++c) total += static_cast<double>(vector_exp(logits[c] - highest));

  const float chosen = logits[label];
  std::int32_t ahead = 0;  // classes ranked before the label
#pragma omp simd reduction(+ : ahead)
  for (std::int64_t c = 0; c < classes; ++c) ahead += logits[c] > chosen ? 1 : 0;
#pragma omp simd reduction(+ : ahead)
  for (std::int64_t c = 0; c < label; ++c) ahead += logits[c] == chosen ? 1 : 0;
  sums[0] += std::log(total) + static_cast<double>(highest) - static_cast<double>(chosen);
  sums[1] += 1;
  if (!std::isnan(total)) {
    sums[2] += ahead == 0 ? 1 : 0;
    sums[3] += ahead < top_k ? 1 : 0;
  }
  if (gradient == nullptr) return;
  const auto inverse = static_cast<float>(1.0 / total);
  const float of_label = vector_exp(chosen - highest) * inverse - 1.0f;
#pragma omp simd
  for (std::int64_t c = 0; c < classes; ++c) {
    gradient[c] = from_float<T>(vector_exp(logits[c] - highest) * inverse * weight);
  }
  gradient[label] = from_float<T>(of_label * weight);
}

struct Rows {
  const float* logits;
  const std::int32_t* labels;
  std::int64_t count, classes;
  int top_k;
  float weight;
};

// Loss and gradient of all rows, the sums of block after block in `partial`. Returns a row whose label is
// no class, or -1.
template <class T>
std::int64_t all_rows(int threads, const Rows& r, double* partial, T* gradient) {
  std::atomic<std::int64_t> wrong_row{-1};
  parallel_for(threads, ceil_div(r.count, row_block), [&](std::int64_t block) {
    double* sums = partial + block * sum_count;
    std::fill_n(sums, sum_count, 0.0);
    for (std::int64_t row = block * row_block; row < std::min(r.count, (block + 1) * row_block); ++row) {
      T* row_gradient = gradient == nullptr ? nullptr : gradient + row * r.classes;
      const std::int32_t label = r.labels[row];
      if (label >= 0 && label < r.classes) {
        row_loss(r.logits + row * r.classes, r.classes, label, r.top_k, r.weight, sums, row_gradient);
      } else {
        if (label != -1) wrong_row = row;
        if (row_gradient != nullptr) std::fill_n(row_gradient, r.classes, T{});
      }
    }
  });
  return wrong_row;
}

}  // namespace

void CpuBackend::softmax_nll(ConstView logits, ConstView labels, int top_k, View sums, View dlogits,
                             float weight) {
  constexpr auto name = "softmax_nll";
  check_softmax_nll(name, logits, labels, top_k, sums, dlogits);
  const std::int64_t rows = logits.shape[0], classes = logits.shape[1];

  const Rows r{logits.as<float>(), labels.as<std::int32_t>(), rows, classes, top_k, weight};
  const std::int64_t blocks = ceil_div(rows, row_block);
  auto* partial =
      reinterpret_cast<double*>(scratch(static_cast<std::size_t>(blocks * sum_count) * sizeof(double)));
  std::int64_t wrong_row = -1;
  with_element_type(name, "dlogits", dlogits, [&](auto type) {
    using T = decltype(type);
    wrong_row = all_rows(threads(), r, partial, dlogits.empty() ? nullptr : dlogits.as<T>());
  });
  if (wrong_row >= 0) {
    fail(ExitCode::internal,
         "{}: the label of row {} is {}, but there are {} classes, from 0, and -1 for none", name, wrong_row,
         r.labels[wrong_row], classes);
  }
  double* result = sums.as<double>();
  for (std::int64_t block = 0; block < blocks; ++block) {
    for (int i = 0; i < sum_count; ++i) result[i] += partial[block * sum_count + i];
  }
}

}  // namespace motley
