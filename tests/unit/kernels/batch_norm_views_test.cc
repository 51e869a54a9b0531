// Views of all kinds, values that are not numbers, and wrong arguments.
#include "batch_norm_test.h"

namespace motley::test {
namespace {

class BatchNormViewsTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(BatchNormViewsTest);

TEST_P(BatchNormViewsTest, views_may_share_memory) {
  for (const DType dtype : element_types(*backend)) {
    const BatchNormCase c{{3, 7, 5, 33}, Activation::relu, true};
    const BatchNormInputs in(*backend, c, dtype);
    const BatchNormPass p = run(*backend, c, in);
    const auto copy = [&](const Tensor& from) { return typed(dtype, from.floats(), c.shape); };
    for (const bool into_residual : {false, true}) {
      const Tensor x = copy(in.x), residual = copy(in.residual), &y = into_residual ? residual : x;
      backend->batch_norm_forward(c.activation, x, residual, p.mean, p.rstd, in.gamma, in.beta, y);
      EXPECT_EQ(y.floats(), p.y.floats());
    }
    const auto backward = [&](const Tensor& x, const Tensor& y, const Tensor& dy, View dx, View dresidual) {
      backend->batch_norm_backward(c.activation, x, y, dy, p.mean, p.rstd, in.gamma, in.beta, p.backward_sums,
                                   static_cast<double>(c.rows()), dx, dresidual);
    };
    const Tensor x = copy(in.x), y = copy(p.y), dy = copy(in.dy);
    backward(x, y, dy, x, dy);
    EXPECT_EQ(x.floats(), p.dx.floats()) << "dx is x";
    EXPECT_EQ(dy.floats(), p.dresidual.floats()) << "dresidual is dy";
    const Tensor other = copy(in.dy);
    backward(in.x, y, other, other, y);
    EXPECT_EQ(other.floats(), p.dx.floats()) << "dx is dy";
    EXPECT_EQ(y.floats(), p.dresidual.floats()) << "dresidual is y";
    const Tensor alone = copy(in.dy);
    backward(in.x, p.y, alone, alone, {});
    EXPECT_EQ(alone.floats(), p.dx.floats()) << "without dresidual";
  }
}

TEST_P(BatchNormViewsTest, views_may_begin_anywhere) {
  for (const DType dtype : element_types(*backend)) {
    const BatchNormCase c{{2, 3, 5, 64}, Activation::relu, true};
    const BatchNormInputs in(*backend, c, dtype);
    const BatchNormPass p = run(*backend, c, in);
    std::vector<Tensor> kept;
    // The same values one element further on.
    const auto shifted = [&](const Tensor& from) -> View {
      auto values = from.floats();
      const DType type = from.view().dtype;
      values.insert(values.begin(), 0.0f);
      kept.push_back(test::typed(*backend, type, values, {static_cast<std::int64_t>(values.size())}));
      return {static_cast<std::byte*>(kept.back().view().data) + size_of(type), type, from.shape()};
    };
    const auto expect_same = [&](const Tensor& whole, const Tensor& want) {
      auto values = whole.floats();
      EXPECT_EQ(values.front(), 0.0f);
      values.erase(values.begin());
      EXPECT_EQ(values, want.floats());
    };
    const View x = shifted(in.x), residual = shifted(in.residual), dy = shifted(in.dy);
    const View gamma = shifted(in.gamma), beta = shifted(in.beta);
    const std::size_t outputs = kept.size();
    const View y = shifted(in.dy), dx = shifted(in.dy), dresidual = shifted(in.x);
    const Tensor sums = zeros({2, 64}, DType::f64), dgamma = junk({64}), dbeta = junk({64});
    backend->batch_norm_sums(x, sums);
    const auto got = sums.values<double>(), want = p.sums.values<double>();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
    backend->batch_norm_forward(c.activation, x, residual, p.mean, p.rstd, gamma, beta, y);
    backend->batch_norm_backward_sums(c.activation, x, y, dy, p.mean, p.rstd, gamma, beta, sums, dgamma,
                                      dbeta, false);
    expect_near(dgamma.values(), p.dgamma.values(), 1e-5);
    expect_near(dbeta.values(), p.dbeta.values(), 1e-5);
    backend->batch_norm_backward(c.activation, x, y, dy, p.mean, p.rstd, gamma, beta, p.backward_sums,
                                 static_cast<double>(c.rows()), dx, dresidual);
    expect_same(kept[outputs], p.y);
    expect_same(kept[outputs + 1], p.dx);
    expect_same(kept[outputs + 2], p.dresidual);
  }
}

TEST_P(BatchNormViewsTest, relu_is_derived_from_x_as_it_is_from_y) {
  const BatchNormCase c{{7, 5, 9, 24}, Activation::relu, false};
  const BatchNormInputs in(*backend, c, DType::f32);
  const BatchNormPass p = run(*backend, c, in);
  const Tensor sums = zeros({2, 24}, DType::f64), dgamma = junk({24}), dbeta = junk({24}), dx = junk(c.shape),
               passed = junk(c.shape);
  backend->batch_norm_backward_sums(c.activation, in.x, p.y, in.dy, p.mean, p.rstd, in.gamma, in.beta, sums,
                                    dgamma, dbeta, false);
  const auto got_sums = sums.values<double>(), want_sums = p.backward_sums.values<double>();
  for (std::size_t i = 0; i < got_sums.size(); ++i) EXPECT_NEAR(got_sums[i], want_sums[i], 1e-4);
  const auto y = p.y.values(), dy = in.dy.values();
  for (const bool from_y : {false, true}) {
    backend->batch_norm_backward(c.activation, in.x, optional(p.y, from_y), in.dy, p.mean, p.rstd, in.gamma,
                                 in.beta, p.backward_sums, static_cast<double>(c.rows()), dx, passed);
    expect_near(dx.values(), p.dx.values(), 1e-6);
    const auto got = passed.values();
    for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(got[i], y[i] > 0 ? dy[i] : 0.0f) << from_y;
  }
}

TEST_P(BatchNormViewsTest, a_nan_stays_one_in_its_channel_and_leaves_the_others_alone) {
  const BatchNormCase c{{5, 6, 7, 8}, Activation::relu, false};
  BatchNormInputs in(*backend, c, DType::f32);
  const BatchNormPass sound = run(*backend, c, in);
  auto values = in.x.values();
  values[8 * 100 + 3] = std::nanf("");
  in.x = tensor(values, c.shape);
  const BatchNormPass p = run(*backend, c, in);
  const auto y = p.y.values(), want_y = sound.y.values(), dx = p.dx.values(), want_dx = sound.dx.values();
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (i % 8 == 3) {
      ASSERT_TRUE(std::isnan(y[i]) && std::isnan(dx[i])) << i;
    } else {
      ASSERT_EQ(y[i], want_y[i]);
      ASSERT_EQ(dx[i], want_dx[i]);
    }
  }
  EXPECT_TRUE(std::isnan(p.running_var.values()[3]));
  EXPECT_TRUE(std::isnan(p.rstd.values()[3]));
}

TEST(CpuBatchNorm, has_the_same_bits_on_any_number_of_threads) {
  const BatchNormCase c{{21, 40, 50, 6}, Activation::relu, true};
  const auto first_backend = make_cpu_backend(1);
  const BatchNormPass first = run(*first_backend, c, BatchNormInputs(*first_backend, c, DType::f32));
  for (const int threads : {2, 3, 5}) {
    const auto backend = make_cpu_backend(threads);
    const BatchNormPass again = run(*backend, c, BatchNormInputs(*backend, c, DType::f32));
    EXPECT_EQ(again.sums.values<double>(), first.sums.values<double>());
    EXPECT_EQ(again.backward_sums.values<double>(), first.backward_sums.values<double>());
    EXPECT_EQ(again.y.values(), first.y.values());
    EXPECT_EQ(again.dx.values(), first.dx.values());
  }
}

TEST_P(BatchNormViewsTest, wrong_arguments_are_refused_by_name) {
  const BatchNormCase c{{2, 3, 4, 5}, Activation::relu, true};
  const BatchNormInputs in(*backend, c, DType::f32);
  const BatchNormPass p = run(*backend, c, in);
  const auto forward = [&](Activation activation, ConstView x, ConstView beta) {
    backend->batch_norm_forward(activation, x, in.residual, p.mean, p.rstd, in.gamma, beta, p.y);
  };
  expect_refused([&] { forward(Activation::relu, in.x, zeros({4})); }, {"batch_norm_forward", "beta", "[4]"});
  expect_refused([&] { forward(Activation::gelu, in.x, in.beta); }, {"batch_norm_forward", "swish"});
  expect_refused([&] { forward(Activation::swish, in.x, in.beta); }, {"batch_norm_forward", "residual"});
  expect_refused([&] { forward(Activation::relu, zeros({2, 3, 20}), in.beta); }, {"x", "[n, h, w, c]"});
  expect_refused([&] { backend->batch_norm_sums(in.x, zeros({2, 5})); }, {"batch_norm_sums", "float64"});
  expect_refused(
      [&] {
        backend->batch_norm_statistics(p.sums, 1, batch_norm_eps, batch_norm_momentum, p.mean, p.rstd,
                                       p.running_mean, p.running_var);
      },
      {"batch_norm_statistics", "count", "2"});
  expect_refused(
      [&] {
        backend->batch_norm_backward_sums(Activation::swish, in.x, p.y, in.dy, p.mean, p.rstd, in.gamma,
                                          in.beta, p.sums, p.dgamma, p.dbeta, false);
      },
      {"batch_norm_backward_sums", "y was given"});
  expect_refused(
      [&] {
        backend->batch_norm_backward(Activation::relu, in.x, {}, in.dy, p.mean, p.rstd, in.gamma, in.beta,
                                     p.sums, 24, p.dx, p.dx);
      },
      {"batch_norm_backward", "dresidual"});
  expect_refused([&] { backend->batch_norm_running(zeros({5}), batch_norm_eps, zeros({6})); },
                 {"batch_norm_running", "rstd"});
}

}  // namespace
}  // namespace motley::test
