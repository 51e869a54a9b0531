// Linear layers in bfloat16, and what activations do between them.
#include "backend_test.h"

namespace motley::test {
namespace {

struct LinearCase {
  std::int64_t n, in, out;
};
const LinearCase cases[] = {{1, 1, 1}, {7, 33, 11}, {65, 130, 67}, {3, 1031, 17}, {128, 64, 64}};

class LinearBf16Test : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(LinearBf16Test);

// Products of bfloat16 are exact, so that only the order of the sums and the rounding of results are free.
TEST_P(LinearBf16Test, forward_and_gradients_are_the_definition_in_float64) {
  for (const LinearCase& c : cases) {
    SCOPED_TRACE(Shape({c.n, c.in, c.out}).to_string());
    const auto n = static_cast<std::size_t>(c.n), in = static_cast<std::size_t>(c.in),
               out = static_cast<std::size_t>(c.out);
    const auto filled = [&](const Shape& shape, std::uint32_t stream) {
      return typed(DType::bf16, random_values(shape.elements(), stream), shape);
    };
    const Tensor x = filled({c.n, c.in}, 1), weight = filled({c.out, c.in}, 2), dy = filled({c.n, c.out}, 3);
    const Tensor bias = random({c.out}, 4), start = filled({c.n, c.in}, 5);
    const auto xv = x.floats(), wv = weight.floats(), dv = dy.floats(), bv = bias.values(),
               sv = start.floats();
    std::vector<double> y(n * out), dx(n * in), dweight(out * in), dbias(out);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t o = 0; o < out; ++o) {
        const auto gradient = static_cast<double>(dv[i * out + o]);
        dbias[o] += gradient;
        y[i * out + o] += static_cast<double>(bv[o]);
        for (std::size_t k = 0; k < in; ++k) {
          y[i * out + o] += static_cast<double>(xv[i * in + k]) * static_cast<double>(wv[o * in + k]);
          dx[i * in + k] += gradient * static_cast<double>(wv[o * in + k]);
          dweight[o * in + k] += gradient * static_cast<double>(xv[i * in + k]);
        }
      }
    }
    const Tensor narrow = junk({c.n, c.out}, DType::bf16), wide = junk({c.n, c.out}),
                 got_dx = junk({c.n, c.in}, DType::bf16);
    backend->linear_forward(x, weight, bias, Activation::none, narrow);
    expect_within(narrow.floats(), y, rounding(DType::bf16), 1e-4);
    backend->linear_forward(x, weight, bias, Activation::none, wide);
    expect_within(wide.values(), y, 2e-6, 2e-5);
    backend->linear_backward_data(dy, weight, got_dx);
    expect_within(got_dx.floats(), dx, rounding(DType::bf16), 1e-4);
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] += static_cast<double>(sv[i]);
    backend->linear_backward_data(dy, weight, start, true);
    expect_within(start.floats(), dx, rounding(DType::bf16), 1e-4);
    const Tensor got_dweight = junk({c.out, c.in}), got_dbias = junk({c.out});
    for (const double times : {1.0, 2.0}) {
      backend->linear_backward_weights(x, dy, got_dweight, got_dbias, times == 2.0);
      std::vector<double> want_weight = dweight, want_bias = dbias;
      for (double& value : want_weight) value *= times;
      for (double& value : want_bias) value *= times;
      expect_within(got_dweight.values(), want_weight, 2e-6, 2e-5);
      expect_within(got_dbias.values(), want_bias, 2e-6, 2e-5);
    }
  }
}

// Few and many rows, few and many columns; columns that fill whole accesses of a device, and others.
TEST_P(LinearBf16Test, the_gradient_of_the_bias_is_the_sum_over_any_number_of_rows) {
  for (const Shape& shape : {Shape{1, 3}, Shape{257, 40}, Shape{1100, 24}, Shape{601, 7}, Shape{4500, 1},
                             Shape{300, 264}, Shape{0, 5}}) {
    for (const DType dtype : element_types(*backend)) {
      SCOPED_TRACE(shape.to_string() + " " + std::string(name_of(dtype)));
      const Tensor dy = typed(dtype, random_values(shape.elements(), 1), shape),
                   x = typed(dtype, random_values(shape[0], 2), {shape[0], 1}), start = random({shape[1]}, 3),
                   dweight = junk({shape[1], 1}), dbias = junk({shape[1]});
      const auto columns = static_cast<std::size_t>(shape[1]);
      std::vector<double> want(columns);
      const auto values = dy.floats();
      for (std::size_t i = 0; i < values.size(); ++i) want[i % columns] += static_cast<double>(values[i]);
      backend->linear_backward_weights(x, dy, dweight, dbias, false);
      expect_within(dbias.values(), want, 2e-6, 1e-4);
      const auto before = start.values();
      for (std::size_t i = 0; i < columns; ++i) want[i] += static_cast<double>(before[i]);
      backend->linear_backward_weights(x, dy, dweight, start, true);
      expect_within(start.values(), want, 2e-6, 1e-4);
    }
  }
}

TEST_P(LinearBf16Test, the_preactivation_is_what_the_activation_was_applied_to) {
  for (const DType dtype : element_types(*backend)) {
    const Tensor x = typed(dtype, random_values(7 * 33, 1), {7, 33}),
                 weight = typed(dtype, random_values(11 * 33, 2), {11, 33});
    const Tensor bias = random({11}, 3);
    const Tensor plain = junk({7, 11}, dtype), before = junk({7, 11}, dtype), y = junk({7, 11}, dtype),
                 alone = junk({7, 11}, dtype);
    backend->linear_forward(x, weight, bias, Activation::none, plain);
    backend->linear_forward(x, weight, bias, Activation::swish, y, before);
    backend->linear_forward(x, weight, bias, Activation::swish, alone);
    EXPECT_EQ(before.floats(), plain.floats());
    EXPECT_EQ(alone.floats(), y.floats());
    std::vector<double> want;
    for (const float value : before.floats()) {
      want.push_back(static_cast<double>(value) / (1 + std::exp(-static_cast<double>(value))));
    }
    expect_within(y.floats(), want, rounding(dtype), 1e-7);
  }
}

TEST_P(LinearBf16Test, activations_keep_nan_and_their_gradients_do) {
  const Tensor x = tensor({1, std::nanf("")}, {2, 1}), one = tensor({1}, {1, 1}), y = junk({2, 1}),
               dy = junk({2, 1});
  for (const Activation a : {Activation::relu, Activation::gelu, Activation::swish, Activation::tanh}) {
    backend->linear_forward(x, one, {}, a, y);
    EXPECT_FALSE(std::isnan(y.values()[0]));
    EXPECT_TRUE(std::isnan(y.values()[1]));
  }
  for (const Activation a : {Activation::gelu, Activation::swish, Activation::tanh}) {
    backend->activation_backward(a, x, dy, y);
    EXPECT_FALSE(std::isnan(y.values()[0]));
    EXPECT_TRUE(std::isnan(y.values()[1]));
  }
}

TEST_P(LinearBf16Test, backward_data_accumulates_in_float32_too) {
  const Tensor dy = random({7, 11}, 1), weight = random({11, 33}, 2), dx = junk({7, 33});
  const Tensor start = random({7, 33}, 3);
  const auto before = start.values();
  backend->linear_backward_data(dy, weight, dx);
  backend->linear_backward_data(dy, weight, start, true);
  const auto alone = dx.values(), got = start.values();
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], before[i] + alone[i], 2e-6);
}

TEST_P(LinearBf16Test, no_inputs_leave_the_bias) {
  const Tensor x = junk({3, 0}, DType::bf16), weight = junk({5, 0}, DType::bf16), bias = random({5}, 1);
  const Tensor y = junk({3, 5}), before = junk({3, 5});
  backend->linear_forward(x, weight, bias, Activation::relu, y, before);
  const auto b = bias.values(), got = before.values();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], b[i % 5]);
}

TEST_P(LinearBf16Test, dropout_rounds_what_it_keeps) {
  const RandomKey key(5, Purpose::dropout, 3, 17);
  const auto values = random_values(3 * 77, 1);
  const Tensor narrow = typed(DType::bf16, values, {3, 77}), wide = tensor(narrow.floats(), {3, 77});
  backend->dropout({key, 9, 0.3}, wide, wide);
  backend->dropout({key, 9, 0.3}, narrow, narrow);
  EXPECT_EQ(narrow.floats(), typed(DType::bf16, wide.values(), {3, 77}).floats());
}

TEST_P(LinearBf16Test, mixed_types_are_refused_by_name) {
  const Tensor x = zeros({2, 5}, DType::bf16), weight = zeros({3, 5}, DType::bf16), y = zeros({2, 3});
  expect_refused(
      [&] {
        backend->linear_forward(x, zeros({3, 5}), {}, Activation::none, y);
      },
      {"linear_forward", "weight", "float32"});
  expect_refused(
      [&] {
        backend->linear_forward(x, weight, {}, Activation::none, y, zeros({2, 3}, DType::bf16));
      },
      {"linear_forward", "preactivation"});
  expect_refused([&] { backend->linear_backward_data(y, weight, x); }, {"linear_backward_data", "weight"});
  expect_refused([&] { backend->activation_backward(Activation::gelu, y, x, y); },
                 {"activation_backward", "dy"});
}

}  // namespace
}  // namespace motley::test
