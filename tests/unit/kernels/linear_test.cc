#include "backend_test.h"

namespace motley::test {
namespace {

struct LinearCase {
  std::int64_t n, in, out;
};
const LinearCase cases[] = {{1, 1, 1},       {7, 13, 11}, {64, 128, 10}, {3, 1031, 17},
                            {64, 9216, 128}, {1, 600, 1}, {67, 513, 65}};

// want[i] = sum_k a(i, k) b(i, k) in float64.
template <class A, class B>
void expect_products(const std::vector<float>& got, std::int64_t count, std::int64_t depth, const A& a,
                     const B& b, double factor = 1) {
  std::vector<double> want(static_cast<std::size_t>(count)), size(want.size());
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const double term = factor * static_cast<double>(a(i, k)) * static_cast<double>(b(i, k));
      want[static_cast<std::size_t>(i)] += term;
      size[static_cast<std::size_t>(i)] += std::abs(term);
    }
  }
  expect_close(got, want, size);
}

class LinearTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(LinearTest);

TEST_P(LinearTest, forward_and_gradients_are_the_definition_in_float64) {
  for (const LinearCase& c : cases) {
    SCOPED_TRACE(Shape({c.n, c.in, c.out}).to_string());
    const Tensor x = random({c.n, c.in}, 1), weight = random({c.out, c.in}, 2), dy = random({c.n, c.out}, 3);
    const float* xv = nullptr;
    const float* wv = nullptr;
    const float* dv = nullptr;
    const auto x_values = x.values(), weight_values = weight.values(), dy_values = dy.values();
    xv = x_values.data(), wv = weight_values.data(), dv = dy_values.data();

    const Tensor y = junk({c.n, c.out}), dx = junk({c.n, c.in}), dweight = junk({c.out, c.in}),
                 dbias = junk({c.out});
    backend->linear_forward(x, weight, ConstView{}, Activation::none, y);
    expect_products(
        y.values(), c.n * c.out, c.in, [&](auto i, auto k) { return xv[i / c.out * c.in + k]; },
        [&](auto i, auto k) { return wv[i % c.out * c.in + k]; });
    backend->linear_backward_data(dy, weight, dx);
    expect_products(
        dx.values(), c.n * c.in, c.out, [&](auto i, auto k) { return dv[i / c.in * c.out + k]; },
        [&](auto i, auto k) { return wv[k * c.in + i % c.in]; });
    for (const bool accumulate : {false, true}) {
      backend->linear_backward_weights(x, dy, dweight, dbias, accumulate);
      expect_products(
          dweight.values(), c.out * c.in, c.n, [&](auto i, auto k) { return dv[k * c.out + i / c.in]; },
          [&](auto i, auto k) { return xv[k * c.in + i % c.in]; }, accumulate ? 2 : 1);
      expect_products(
          dbias.values(), c.out, c.n, [&](auto i, auto k) { return dv[k * c.out + i]; },
          [](auto, auto) { return 1.0f; }, accumulate ? 2 : 1);
    }
  }
}

TEST_P(LinearTest, bias_and_relu_are_applied_after_the_product) {
  for (const LinearCase& c : cases) {
    const Tensor x = random({c.n, c.in}, 1), weight = random({c.out, c.in}, 2), bias = random({c.out}, 3);
    const Tensor plain = junk({c.n, c.out}), biased = junk({c.n, c.out}), both = junk({c.n, c.out});
    backend->linear_forward(x, weight, ConstView{}, Activation::none, plain);
    backend->linear_forward(x, weight, bias, Activation::none, biased);
    backend->linear_forward(x, weight, bias, Activation::relu, both);
    const auto p = plain.values(), b = bias.values(), got_biased = biased.values(), got_both = both.values();
    // A library may sum in another order where it adds a bias.
    const double tolerance =
        backend->device().kind == "cpu" ? 0 : 1e-6 * static_cast<double>(c.in) / 4 + 1e-6;
    for (std::size_t i = 0; i < p.size(); ++i) {
      ASSERT_NEAR(got_biased[i], p[i] + b[i % b.size()], tolerance);
      ASSERT_EQ(got_both[i], std::max(got_biased[i], 0.0f));
    }
  }
}

double gelu(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}

TEST_P(LinearTest, bias_and_activation_of_many_rows_in_every_type) {
  for (const DType dtype : element_types(*backend)) {
    for (const auto& [n, out] : {std::pair<std::int64_t, std::int64_t>{611, 12}, {5, 260}, {9, 77}}) {
      const Tensor x = typed(dtype, random_values(n * 3, 1), {n, 3}),
                   weight = typed(dtype, random_values(out * 3, 2), {out, 3}), bias = random({out}, 3);
      const Tensor y = junk({n, out}, dtype), before = junk({n, out}, dtype);
      backend->linear_forward(x, weight, bias, Activation::gelu, y, before);
      const auto xv = x.floats(), wv = weight.floats(), bv = bias.values(), got = before.floats();
      std::vector<double> sums, values;
      for (std::int64_t i = 0; i < n * out; ++i) {
        const auto row = static_cast<std::size_t>(i / out), column = static_cast<std::size_t>(i % out);
        double sum = static_cast<double>(bv[column]);
        for (std::size_t k = 0; k < 3; ++k)
          sum += static_cast<double>(xv[row * 3 + k]) * static_cast<double>(wv[column * 3 + k]);
        sums.push_back(sum);
        values.push_back(gelu(static_cast<double>(got[static_cast<std::size_t>(i)])));
      }
      expect_within(got, sums, rounding(dtype), 1e-6);
      expect_within(y.floats(), values, rounding(dtype), 1e-6);
    }
  }
}

TEST_P(LinearTest, the_gradient_of_the_bias_is_the_sum_of_all_rows) {
  for (const DType dtype : element_types(*backend)) {
    for (const auto& [n, out] : {std::pair<std::int64_t, std::int64_t>{4500, 33}, {300, 520}, {100, 8}}) {
      const Tensor x = typed(dtype, random_values(n, 1), {n, 1}),
                   dy = typed(dtype, random_values(n * out, 2), {n, out});
      const Tensor dweight = junk({out, 1}), dbias = junk({out});
      backend->linear_backward_weights(x, dy, dweight, dbias, false);
      const auto first = dbias.values(), terms = dy.floats();
      std::vector<double> want(static_cast<std::size_t>(out)), size(want.size());
      for (std::size_t i = 0; i < terms.size(); ++i) {
        want[i % want.size()] += static_cast<double>(terms[i]);
        size[i % want.size()] += std::abs(static_cast<double>(terms[i]));
      }
      expect_close(first, want, size);
      backend->linear_backward_weights(x, dy, dweight, dbias, true);
      for (std::size_t i = 0; i < want.size(); ++i) want[i] *= 2, size[i] *= 2;
      expect_close(dbias.values(), want, size);
    }
  }
}

TEST_P(LinearTest, views_may_begin_anywhere) {
  constexpr std::int64_t n = 20, in = 24, out = 16;
  for (const DType dtype : element_types(*backend)) {
    std::vector<Tensor> places;
    const auto place = [&](DType type, std::vector<float> values, const Shape& shape) {
      values.insert(values.begin(), 0.0f);
      places.push_back(typed(type, values, {static_cast<std::int64_t>(values.size())}));
      return View{static_cast<std::byte*>(places.back().view().data) + size_of(type), type, shape};
    };
    const auto values = [&](std::size_t which) {
      const auto all = places[which].floats();
      return std::vector<float>(all.begin() + 1, all.end());
    };
    const auto xv = random_values(n * in, 1), wv = random_values(out * in, 2), bv = random_values(out, 3);
    const Tensor x = typed(dtype, xv, {n, in}), weight = typed(dtype, wv, {out, in}),
                 bias = tensor(bv, {out});
    const Tensor y = junk({n, out}, dtype), dx = junk({n, in}, dtype), dweight = junk({out, in}),
                 dbias = junk({out});
    backend->linear_forward(x, weight, bias, Activation::swish, y);
    backend->linear_backward_data(y, weight, dx);
    backend->linear_backward_weights(x, y, dweight, dbias, false);
    const View x2 = place(dtype, xv, {n, in}), weight2 = place(dtype, wv, {out, in}),
               bias2 = place(DType::f32, bv, {out}), y2 = place(dtype, y.floats(), {n, out}),
               dx2 = place(dtype, xv, {n, in}), dweight2 = place(DType::f32, wv, {out, in}),
               dbias2 = place(DType::f32, bv, {out});
    backend->linear_backward_weights(x2, y2, dweight2, dbias2, false);
    backend->linear_backward_data(y2, weight2, dx2);
    backend->fill_zero(y2);
    backend->linear_forward(x2, weight2, bias2, Activation::swish, y2);
    const double tolerance = dtype == DType::f32 ? 1e-5 : 2 * rounding(dtype);
    expect_near(values(3), y.floats(), tolerance);
    expect_near(values(4), dx.floats(), tolerance);
    expect_near(values(5), dweight.values(), 1e-5);
    expect_near(values(6), dbias.values(), 1e-5);
  }
}

TEST_P(LinearTest, nan_passes_through_the_activation) {
  const Tensor x = tensor({1, std::nanf("")}, {2, 1}), weight = tensor({1}, {1, 1}), y = junk({2, 1});
  backend->linear_forward(x, weight, {}, Activation::relu, y);
  EXPECT_EQ(y.values()[0], 1);
  EXPECT_TRUE(std::isnan(y.values()[1]));
}

TEST_P(LinearTest, the_same_call_gives_the_same_bits) {
  const Tensor x = random({64, 9216}, 1), weight = random({128, 9216}, 2), dy = random({64, 128}, 3);
  std::vector<float> first_y, first_dx, first_dweight;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Tensor y = junk({64, 128}), dx = junk({64, 9216}), dweight = junk({128, 9216});
    backend->linear_forward(x, weight, ConstView{}, Activation::none, y);
    backend->linear_backward_data(dy, weight, dx);
    backend->linear_backward_weights(x, dy, dweight, View{}, false);
    if (repeat == 0) first_y = y.values(), first_dx = dx.values(), first_dweight = dweight.values();
    EXPECT_EQ(y.values(), first_y);
    EXPECT_EQ(dx.values(), first_dx);
    EXPECT_EQ(dweight.values(), first_dweight);
  }
}

TEST_P(LinearTest, no_rows_give_zero_gradients) {
  const Tensor x = zeros({0, 5}), dy = zeros({0, 3}), weight = random({3, 5}, 1), dweight = junk({3, 5}),
               dbias = junk({3});
  backend->linear_forward(x, weight, dbias, Activation::relu, dy);
  backend->linear_backward_data(dy, weight, x);
  backend->linear_backward_weights(x, dy, dweight, dbias, true);
  EXPECT_EQ(dweight.values(), std::vector<float>(15, 12345.0f));
  backend->linear_backward_weights(x, dy, dweight, dbias, false);
  EXPECT_EQ(dweight.values(), std::vector<float>(15, 0.0f));
  EXPECT_EQ(dbias.values(), std::vector<float>(3, 0.0f));
}

TEST_P(LinearTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({2, 5}), weight = zeros({3, 5}), y = zeros({2, 3});
  expect_refused(
      [&] {
        backend->linear_forward(x, zeros({3, 4}), {}, Activation::none, y);
      },
      {"linear_forward", "weight"});
  expect_refused([&] { backend->linear_forward(x, weight, zeros({2}), Activation::none, y); },
                 {"linear_forward", "bias"});
  expect_refused(
      [&] {
        backend->linear_forward(x, weight, {}, Activation::none, zeros({3, 2}));
      },
      {"linear_forward", "y"});
  expect_refused(
      [&] {
        backend->linear_backward_data(zeros({2, 4}), weight, x);
      },
      {"linear_backward_data", "dy"});
  expect_refused([&] { backend->linear_backward_weights(x, y, weight, zeros({3}, DType::f64), false); },
                 {"linear_backward_weights", "dbias", "float64"});
}

}  // namespace
}  // namespace motley::test
