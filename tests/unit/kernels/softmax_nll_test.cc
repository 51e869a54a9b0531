#include <algorithm>
#include <limits>

#include "backend_test.h"

namespace motley::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct Result {
  std::vector<double> sums;
  std::vector<float> gradient;
};

class SoftmaxNllTest : public BackendTest {
 protected:
  Result run(const std::vector<float>& logits, const std::vector<std::int32_t>& labels, int top_k = 1) {
    const auto rows = static_cast<std::int64_t>(labels.size());
    const Tensor x = tensor(logits, {rows, static_cast<std::int64_t>(logits.size()) / rows});
    const Tensor y(*backend, labels, {rows});
    const Tensor sums = zeros({4}, DType::f64), dx = junk(x.shape());
    backend->softmax_nll(x, y, top_k, sums, dx);
    return {sums.values<double>(), dx.values()};
  }
};
MOTLEY_ON_EVERY_BACKEND(SoftmaxNllTest);

// -log p(label) of one row.
double loss(const std::vector<double>& logits, std::int32_t label) {
  double highest = logits[0], total = 0;
  for (const double logit : logits) highest = std::max(highest, logit);
  for (const double logit : logits) total += std::exp(logit - highest);
  return std::log(total) + highest - logits[static_cast<std::size_t>(label)];
}

TEST_P(SoftmaxNllTest, loss_and_gradient_are_those_of_float64_and_finite_differences) {
  for (const auto& [rows, classes, size] : {std::tuple(1, 1, 1.0f), std::tuple(17, 10, 4.0f),
                                            std::tuple(64, 10, 30.0f), std::tuple(3, 1031, 8.0f)}) {
    const auto logits = random_values(rows * classes, 1, -size, size);
    std::vector<std::int32_t> labels(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int32_t>(i * 7) % classes;
    const Result got = run(logits, labels);
    double total = 0;
    for (std::size_t row = 0; row < labels.size(); ++row) {
      const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row) * classes;
      std::vector<double> values(begin, begin + classes);
      total += loss(values, labels[row]);
      for (std::size_t c = 0; c < values.size(); ++c) {
        constexpr double step = 1e-5;
        const double center = values[c];
        values[c] = center + step;
        const double above = loss(values, labels[row]);
        values[c] = center - step;
        const double below = loss(values, labels[row]);
        values[c] = center;
        ASSERT_NEAR(got.gradient[row * values.size() + c], (above - below) / (2 * step), 1e-6);
      }
    }
    EXPECT_NEAR(got.sums[0], total, 1e-6 * total + 1e-7);
    EXPECT_EQ(got.sums[1], rows);
  }
}

TEST_P(SoftmaxNllTest, rows_of_any_length_in_every_type_are_those_of_float64) {
  for (const DType dtype : element_types(*backend)) {
    for (const auto& [rows, classes] : {std::pair(9, 2), std::pair(20, 3), std::pair(3, 1024),
                                        std::pair(3, 1025), std::pair(2, 4098), std::pair(1, 20011)}) {
      const auto n = static_cast<std::size_t>(rows), count = static_cast<std::size_t>(classes);
      const auto logits = random_values(rows * classes, 5, -6, 6);
      std::vector<std::int32_t> labels;
      for (std::int32_t row = 0; row < rows; ++row)
        labels.push_back(row % 3 == 2 ? -1 : (classes - 1) * (row % 2));
      double total = 0, best = 0, among = 0, counted = 0;
      std::vector<double> want(n * count);
      for (std::size_t row = 0; row < n; ++row) {
        if (labels[row] < 0) continue;
        const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(row * count);
        const std::vector<double> values(begin, begin + classes);
        const auto label = static_cast<std::size_t>(labels[row]);
        const double highest = *std::max_element(values.begin(), values.end()),
                     nll = loss(values, labels[row]);
        const auto ahead =
            std::count_if(values.begin(), values.end(), [&](double v) { return v > values[label]; });
        total += nll, best += ahead == 0, among += ahead < 5, counted += 1;
        double sum = 0;
        for (const double value : values) sum += std::exp(value - highest);
        for (std::size_t c = 0; c < count; ++c)
          want[row * count + c] = 0.5 * (std::exp(values[c] - highest) / sum - (c == label ? 1 : 0));
      }
      const Tensor x = tensor(logits, {rows, classes}), y(*backend, labels, {rows});
      const Tensor sums = zeros({4}, DType::f64), dx = junk(x.shape(), dtype);
      backend->softmax_nll(x, y, 5, sums, dx, 0.5f);
      // Of float16, half a subnormal number.
      expect_within(dx.floats(), want, dtype == DType::f32 ? 3e-6 : 1.01 * rounding(dtype),
                    dtype == DType::f16 ? 3.1e-8 : 1e-7);
      const auto got = sums.values<double>();
      EXPECT_NEAR(got[0], total, 1e-6 * total);
      EXPECT_EQ(std::vector<double>(got.begin() + 1, got.end()), (std::vector<double>{counted, best, among}));
      if (dtype != DType::f32) continue;
      backend->softmax_nll(x, y, 5, sums, x, 0.5f);
      EXPECT_EQ(x.values(), dx.values()) << "in place";
    }
  }
}

TEST_P(SoftmaxNllTest, logits_may_begin_anywhere) {
  const auto values = random_values(1 + 3 * 32, 1);
  const Tensor x = tensor(values, {1 + 3 * 32}), dx = junk({1 + 3 * 32});
  const Tensor labels(*backend, std::vector<std::int32_t>{31, 0, 7}, {3}), sums = zeros({4}, DType::f64);
  const Shape shape{3, 32};
  backend->softmax_nll(view_of(x.view().as<float>() + 1, shape), labels, 1, sums,
                       view_of(dx.view().as<float>() + 1, shape));
  const Result want = run({values.begin() + 1, values.end()}, {31, 0, 7});
  const auto got = dx.values();
  EXPECT_NEAR(sums.values<double>()[0], want.sums[0], 1e-6 * want.sums[0]);
  expect_near({got.begin() + 1, got.end()}, want.gradient, 1e-6);
}

TEST_P(SoftmaxNllTest, adds_to_the_sums_and_may_overwrite_the_logits) {
  const auto logits = random_values(50 * 10, 1);
  const std::vector<std::int32_t> label_values(50, 3);
  const Tensor x = tensor(logits, {50, 10}), separate = junk({50, 10}), sums = zeros({4}, DType::f64);
  const Tensor labels(*backend, label_values, {50});
  backend->softmax_nll(x, labels, 2, sums, View{});
  const auto once = sums.values<double>();
  backend->softmax_nll(x, labels, 2, sums, separate);
  backend->softmax_nll(x, labels, 2, sums, x);
  const auto thrice = sums.values<double>();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(thrice[i], 3 * once[i]);
  EXPECT_EQ(x.values(), separate.values());
}

TEST_P(SoftmaxNllTest, rows_without_a_label_do_not_count) {
  const Result got = run({1, 2, 3, nan, 5, 6}, {2, -1});
  EXPECT_EQ(got.sums[1], 1);
  EXPECT_EQ(got.sums[2], 1);
  EXPECT_NEAR(got.sums[0], loss({1, 2, 3}, 2), 1e-6);
  EXPECT_EQ(std::vector<float>(got.gradient.begin() + 3, got.gradient.end()), std::vector<float>(3, 0.0f));
}

TEST_P(SoftmaxNllTest, ties_go_to_the_lower_class) {
  EXPECT_EQ(run({5, 5, 1, 5}, {0}).sums[2], 1);
  EXPECT_EQ(run({5, 5, 1, 5}, {1}).sums[2], 0);
  EXPECT_EQ(run({5, 5, 1, 5}, {1}, 2).sums[3], 1);
  EXPECT_EQ(run({5, 5, 1, 5}, {3}, 2).sums[3], 0);
  EXPECT_EQ(run({5, 5, 1, 5}, {3}, 3).sums[3], 1);
  EXPECT_EQ(run({5, 5, 1, 5}, {2}, 3).sums[3], 0);
  EXPECT_EQ(run({5, 5, 1, 5}, {2}, 99).sums[3], 1) << "k is at most the number of classes";
}

TEST_P(SoftmaxNllTest, a_row_with_nan_is_wrong_and_shows_in_loss_and_gradient) {
  for (const std::int32_t label : {0, 1, 2}) {
    const Result got = run({1, nan, 3}, {label}, 3);
    EXPECT_TRUE(std::isnan(got.sums[0]));
    EXPECT_EQ(got.sums[1], 1);
    EXPECT_EQ(got.sums[2], 0);
    EXPECT_EQ(got.sums[3], 0);
    for (const float value : got.gradient) EXPECT_TRUE(std::isnan(value));
  }
}

TEST_P(SoftmaxNllTest, large_logits_neither_overflow_nor_vanish) {
  const Result got = run({1e30f, -1e30f, 0, 500, 501, -500}, {0, 2});
  EXPECT_NEAR(got.sums[0], loss({500, 501, -500}, 2), 1e-3);
  EXPECT_EQ(got.sums[2], 1);
  EXPECT_EQ(got.gradient[0], 0);
  EXPECT_EQ(got.gradient[1], 0);
  EXPECT_NEAR(got.gradient[4], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_EQ(got.gradient[5], -1);
  const float infinity = std::numeric_limits<float>::infinity();
  const Result masked = run({0, -infinity, 0}, {0});
  EXPECT_NEAR(masked.sums[0], std::log(2.0), 1e-7);
  EXPECT_EQ(masked.gradient[1], 0);
}

TEST(CpuSoftmaxNll, sums_have_the_same_bits_on_any_number_of_threads) {
  const auto logits = random_values(999 * 10, 1, -5, 5);
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 3}) {
    const auto backend = make_cpu_backend(threads);
    const Tensor x(*backend, logits, {999, 10}), labels(*backend, std::vector<std::int32_t>(999, 4), {999});
    const Tensor sums(*backend, DType::f64, {4});
    backend->softmax_nll(x, labels, 2, sums, View{});
    results.push_back(sums.values<double>());
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST_P(SoftmaxNllTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({2, 3}), labels = zeros({2}, DType::i32), sums = zeros({4}, DType::f64);
  expect_refused([&] { backend->softmax_nll(x, zeros({3}, DType::i32), 1, sums, x); },
                 {"softmax_nll", "labels"});
  expect_refused([&] { backend->softmax_nll(x, zeros({2}), 1, sums, x); },
                 {"softmax_nll", "labels", "int32"});
  expect_refused([&] { backend->softmax_nll(x, labels, 1, zeros({4}), x); },
                 {"softmax_nll", "sums", "float64"});
  expect_refused(
      [&] {
        backend->softmax_nll(x, labels, 1, sums, zeros({3, 2}));
      },
      {"softmax_nll", "dlogits"});
}

TEST_P(SoftmaxNllTest, the_weight_scales_the_gradient_and_not_the_loss) {
  const Tensor logits = random({5, 33}, 1), labels(*backend, std::vector<std::int32_t>{3, -1, 32, 0, 7}, {5});
  const Tensor plain = junk({5, 33}), weighted = junk({5, 33}), narrow = junk({5, 33}, DType::bf16);
  const Tensor sums = zeros({4}, DType::f64), weighted_sums = zeros({4}, DType::f64);
  backend->softmax_nll(logits, labels, 2, sums, plain);
  backend->softmax_nll(logits, labels, 2, weighted_sums, weighted, 0.25f);
  EXPECT_EQ(weighted_sums.values<double>(), sums.values<double>());
  std::vector<double> want;
  for (const float value : plain.values()) want.push_back(0.25 * static_cast<double>(value));
  expect_within(weighted.values(), want, 1e-6, 0);
  // In bfloat16 it is the same, rounded.
  backend->softmax_nll(logits, labels, 2, sums, narrow, 0.25f);
  EXPECT_EQ(narrow.floats(), typed(DType::bf16, weighted.values(), {5, 33}).floats());
}

}  // namespace
}  // namespace motley::test
