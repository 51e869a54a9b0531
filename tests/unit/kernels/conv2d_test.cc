#include <fmt/format.h>

#include "backend_test.h"

namespace motley::test {
namespace {

struct ConvCase {
  const char* what;
  std::int64_t n, h, w, in, out;
  Conv2d conv;
  double rounding = 1;  // how many times that of plain sums: transforms on the CPU (winograd.h) round more
};

const ConvCase cases[] = {
    {"smallest", 1, 1, 1, 1, 1, {1, 1, 1, 1, 0, 0, 1}},
    {"one_channel_in", 2, 12, 11, 1, 32, {3, 3, 1, 1, 0, 0, 1}},
    {"mnist_second", 3, 9, 9, 32, 64, {3, 3, 1, 1, 0, 0, 1}},
    {"primes", 3, 7, 13, 5, 11, {3, 3, 1, 1, 1, 1, 1}},
    {"pointwise", 2, 5, 7, 17, 19, {1, 1, 1, 1, 0, 0, 1}},
    {"pointwise_stride", 2, 9, 7, 24, 33, {1, 1, 2, 2, 0, 0, 1}},
    {"five_by_five", 2, 11, 9, 3, 6, {5, 5, 1, 1, 2, 2, 1}},
    {"stride_leaves_a_rest", 2, 10, 8, 16, 16, {3, 3, 2, 3, 1, 0, 1}},
    {"kernel_not_square", 1, 8, 9, 7, 3, {5, 1, 1, 2, 2, 0, 1}},
    {"groups", 2, 7, 7, 12, 18, {3, 3, 1, 1, 1, 1, 3}},
    {"groups_of_sixteen", 2, 6, 6, 32, 32, {3, 3, 1, 1, 1, 1, 2}},
    {"depthwise", 2, 9, 9, 13, 13, {3, 3, 1, 1, 1, 1, 13}},
    {"depthwise_stride", 2, 9, 9, 32, 32, {3, 3, 2, 2, 1, 1, 32}},
    {"depthwise_multiplier", 2, 6, 5, 4, 8, {3, 3, 1, 1, 1, 1, 4}},
    {"one_sample_one_output", 1, 3, 3, 17, 1, {3, 3, 1, 1, 0, 0, 1}},
    {"large_kernel", 1, 7, 8, 33, 3, {6, 6, 1, 1, 0, 0, 1}},
    {"many_channels_out", 2, 3, 5, 3, 300, {1, 1, 1, 1, 0, 0, 1}},
    {"window_larger_than_image", 2, 2, 2, 8, 8, {3, 3, 1, 1, 1, 1, 1}},
    {"depthwise_pointwise", 2, 5, 3, 24, 24, {1, 1, 1, 1, 0, 0, 24}},
    {"depthwise_five", 2, 9, 7, 20, 20, {5, 5, 1, 1, 2, 2, 20}},
    {"depthwise_five_stride", 2, 9, 7, 17, 17, {5, 5, 2, 2, 2, 2, 17}},
    {"depthwise_seven", 1, 11, 9, 44, 44, {7, 7, 1, 1, 3, 3, 44}},
    {"depthwise_seven_stride", 2, 11, 9, 33, 33, {7, 7, 2, 2, 3, 3, 33}},
    {"depthwise_multiplier_seven_stride", 1, 9, 9, 6, 12, {7, 7, 2, 2, 3, 3, 6}},
    {"groups_pointwise", 2, 7, 5, 24, 60, {1, 1, 1, 1, 0, 0, 3}},
    {"groups_pointwise_stride", 2, 7, 5, 20, 36, {1, 1, 2, 2, 0, 0, 2}},
    {"groups_of_eight_stride", 2, 9, 7, 56, 56, {3, 3, 2, 2, 1, 1, 7}},
    {"thirty_two_groups", 1, 7, 9, 128, 128, {3, 3, 2, 2, 1, 1, 32}},
    {"thirty_two_groups_of_three", 1, 5, 5, 96, 96, {3, 3, 1, 1, 1, 1, 32}},
    {"groups_five", 1, 8, 9, 32, 16, {5, 5, 2, 2, 2, 2, 8}},
    {"winograd", 2, 8, 8, 64, 64, {3, 3, 1, 1, 1, 1, 1}, 4},
    {"winograd_sides_leave_rests", 2, 11, 9, 80, 64, {3, 3, 1, 1, 1, 1, 1}, 4},
    {"winograd_without_padding", 1, 10, 7, 64, 80, {3, 3, 1, 1, 0, 0, 1}, 4},
    {"winograd_much_padding", 1, 7, 12, 64, 96, {3, 3, 1, 1, 2, 1, 1}, 4},
    {"winograd_by_columns", 2, 7, 5, 144, 112, {3, 3, 1, 1, 1, 1, 1}, 4},
    {"winograd_one_tile", 1, 4, 3, 112, 64, {3, 3, 1, 1, 1, 1, 1}, 4},
    {"groups_seven", 1, 9, 8, 12, 8, {7, 7, 1, 1, 3, 3, 4}},
};

Shape x_shape(const ConvCase& c) {
  return {c.n, c.h, c.w, c.in};
}
Shape weight_shape(const ConvCase& c) {
  return {c.out, c.in / c.conv.groups, c.conv.kernel_h, c.conv.kernel_w};
}
Shape y_shape(const ConvCase& c) {
  return {c.n, (c.h + 2 * c.conv.pad_h - c.conv.kernel_h) / c.conv.stride_h + 1,
          (c.w + 2 * c.conv.pad_w - c.conv.kernel_w) / c.conv.stride_w + 1, c.out};
}

// The definition: visit(x index, weight index, y index) for every product that a convolution is made of.
template <class Visit>
void for_each_product(const ConvCase& c, const Visit& visit) {
  const Shape y = y_shape(c);
  const std::int64_t in_group = c.in / c.conv.groups, out_group = c.out / c.conv.groups;
  for (std::int64_t n = 0; n < c.n; ++n)
    for (std::int64_t oh = 0; oh < y[1]; ++oh)
      for (std::int64_t ow = 0; ow < y[2]; ++ow)
        for (std::int64_t k = 0; k < c.out; ++k)
          for (std::int64_t i = 0; i < in_group; ++i)
            for (std::int64_t r = 0; r < c.conv.kernel_h; ++r)
              for (std::int64_t s = 0; s < c.conv.kernel_w; ++s) {
                const std::int64_t h = oh * c.conv.stride_h + r - c.conv.pad_h;
                const std::int64_t w = ow * c.conv.stride_w + s - c.conv.pad_w;
                if (h < 0 || h >= c.h || w < 0 || w >= c.w) continue;
                const std::int64_t channel = k / out_group * in_group + i;
                visit(((n * c.h + h) * c.w + w) * c.in + channel,
                      ((k * in_group + i) * c.conv.kernel_h + r) * c.conv.kernel_w + s,
                      ((n * y[1] + oh) * y[2] + ow) * c.out + k);
              }
}

// A float64 sum and the sum of its terms' magnitudes, which bounds the rounding error of a float32 one.
struct Sums {
  std::vector<double> value, size;
  explicit Sums(std::int64_t count) : value(static_cast<std::size_t>(count)), size(value.size()) {}
  void add(std::int64_t i, double term) {
    value[static_cast<std::size_t>(i)] += term;
    size[static_cast<std::size_t>(i)] += std::abs(term);
  }
};

double at(const std::vector<float>& values, std::int64_t i) {
  return values[static_cast<std::size_t>(i)];
}

// Of half types: what storing rounds, once before a bias and once behind it, and the sum.
double result_rounding(DType dtype) {
  return dtype == DType::f32 ? 2e-6 : 2 * rounding(dtype);
}
// On GPUs a gradient of weights is stored in the type of the activations, and added up in float32.
double gradient_rounding(DType dtype, const Backend& backend) {
  return dtype == DType::f32 || backend.device().kind == "cpu" ? 2e-6 : rounding(dtype);
}

class Conv2dTest : public BackendTest {
 protected:
  Tensor random_of(DType dtype, const Shape& shape, std::uint32_t stream) {
    return typed(dtype, random_values(shape.elements(), stream), shape);
  }
  // body(case, type) for every case and type.
  void for_each_case(const std::function<void(const ConvCase&, DType)>& body) {
    for (const DType dtype : element_types(*backend)) {
      for (const ConvCase& c : cases) {
        SCOPED_TRACE(fmt::format("{} {}", c.what, name_of(dtype)));
        body(c, dtype);
      }
    }
  }
};
MOTLEY_ON_EVERY_BACKEND(Conv2dTest);

TEST_P(Conv2dTest, forward_is_the_definition_in_float64) {
  for_each_case([&](const ConvCase& c, DType dtype) {
    const Tensor x = random_of(dtype, x_shape(c), 1), weight = random_of(dtype, weight_shape(c), 2),
                 bias = random({c.out}, 3);
    const auto x_values = x.floats(), weight_values = weight.floats(), bias_values = bias.values();
    for (const bool with_bias : {false, true}) {
      Sums want(y_shape(c).elements());
      for_each_product(
          c, [&](auto xi, auto wi, auto yi) { want.add(yi, at(x_values, xi) * at(weight_values, wi)); });
      if (with_bias) {
        for (std::int64_t i = 0; i < y_shape(c).elements(); ++i) want.add(i, at(bias_values, i % c.out));
      }
      const Tensor y = junk(y_shape(c), dtype), activated = junk(y_shape(c), dtype);
      const ConstView b = with_bias ? ConstView(bias) : ConstView{};
      backend->conv2d_forward(c.conv, x, weight, b, Activation::none, y);
      backend->conv2d_forward(c.conv, x, weight, b, Activation::relu, activated);
      expect_close(y.floats(), want.value, want.size, c.rounding * result_rounding(dtype));
      for (double& value : want.value) value = std::max(value, 0.0);
      expect_close(activated.floats(), want.value, want.size, c.rounding * result_rounding(dtype));
    }
  });
}

TEST_P(Conv2dTest, nan_passes_through_the_activation) {
  for (const std::int64_t in : {1, 32}) {
    const Conv2d conv{3, 3, 1, 1, 0, 0, 1};
    std::vector<float> values = random_values(25 * in, 1);
    values[0] = std::nanf("");
    const Tensor x = tensor(values, {1, 5, 5, in}), weight = random({16, in, 3, 3}, 2),
                 y = junk({1, 3, 3, 16});
    backend->conv2d_forward(conv, x, weight, {}, Activation::relu, y);
    const auto got = y.values();
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i < 16) << i;
  }
}

TEST_P(Conv2dTest, gradient_of_x_is_the_definition_in_float64) {
  for_each_case([&](const ConvCase& c, DType dtype) {
    const Tensor weight = random_of(dtype, weight_shape(c), 2), dy = random_of(dtype, y_shape(c), 4),
                 dx = junk(x_shape(c), dtype);
    const auto weight_values = weight.floats(), dy_values = dy.floats();
    Sums want(dx.shape().elements());
    for_each_product(
        c, [&](auto xi, auto wi, auto yi) { want.add(xi, at(dy_values, yi) * at(weight_values, wi)); });
    backend->conv2d_backward_data(c.conv, dy, weight, dx);
    expect_close(dx.floats(), want.value, want.size, c.rounding * result_rounding(dtype));
  });
}

TEST_P(Conv2dTest, gradients_of_weight_and_bias_are_the_definition_in_float64_and_accumulate) {
  for_each_case([&](const ConvCase& c, DType dtype) {
    const Tensor x = random_of(dtype, x_shape(c), 1), dy = random_of(dtype, y_shape(c), 4);
    const Tensor dweight = junk(weight_shape(c)), dbias = junk({c.out}), without_bias = junk(weight_shape(c));
    const auto x_values = x.floats(), dy_values = dy.floats();
    const double allowed = c.rounding * gradient_rounding(dtype, *backend);
    Sums want_weight(dweight.shape().elements()), want_bias(c.out);
    for_each_product(
        c, [&](auto xi, auto wi, auto yi) { want_weight.add(wi, at(dy_values, yi) * at(x_values, xi)); });
    for (std::int64_t i = 0; i < dy.shape().elements(); ++i) want_bias.add(i % c.out, at(dy_values, i));

    backend->conv2d_backward_weights(c.conv, x, dy, dweight, dbias, false);
    backend->conv2d_backward_weights(c.conv, x, dy, without_bias, View{}, false);
    expect_close(dweight.values(), want_weight.value, want_weight.size, allowed);
    expect_close(dbias.values(), want_bias.value, want_bias.size);
    expect_close(without_bias.values(), want_weight.value, want_weight.size, allowed);

    backend->conv2d_backward_weights(c.conv, x, dy, dweight, dbias, true);
    backend->conv2d_backward_weights(c.conv, x, dy, without_bias, View{}, true);
    for (double& value : want_weight.value) value *= 2;
    for (double& value : want_bias.value) value *= 2;
    expect_close(dweight.values(), want_weight.value, want_weight.size, allowed);
    expect_close(dbias.values(), want_bias.value, want_bias.size);
    expect_close(without_bias.values(), want_weight.value, want_weight.size, allowed);
  });
}

TEST_P(Conv2dTest, tensors_may_lie_at_any_address) {
  const ConvCase c{"", 2, 6, 5, 8, 12, {3, 3, 1, 1, 1, 1, 2}};
  for (const DType dtype : element_types(*backend)) {
    SCOPED_TRACE(name_of(dtype));
    // Behind one element of memory of its own.
    struct Shifted {
      Tensor memory;
      View view;
      std::vector<float> values() const {
        auto all = memory.floats();
        EXPECT_GT(all.front(), 12000.0f);
        all.erase(all.begin());
        return all;
      }
    };
    const auto shifted = [&](const Tensor& whole) {
      const View from = whole.view();
      auto values = whole.floats();
      values.insert(values.begin(), 12345.0f);
      Shifted result{typed(from.dtype, values, {whole.shape().elements() + 1}), {}};
      result.view = {static_cast<std::byte*>(result.memory.view().data) + size_of(from.dtype), from.dtype,
                     whole.shape()};
      return result;
    };
    const Tensor x = random_of(dtype, x_shape(c), 1), weight = random_of(dtype, weight_shape(c), 2),
                 bias = random({c.out}, 3), dy = random_of(dtype, y_shape(c), 4);
    const Tensor y = junk(y_shape(c), dtype), dx = junk(x_shape(c), dtype),
                 dweight = random(weight_shape(c), 5), dbias = random({c.out}, 6);
    const Shifted x1 = shifted(x), weight1 = shifted(weight), bias1 = shifted(bias), dy1 = shifted(dy),
                  y1 = shifted(y), dx1 = shifted(dx), dweight1 = shifted(dweight), dbias1 = shifted(dbias);
    backend->conv2d_forward(c.conv, x, weight, bias, Activation::relu, y);
    backend->conv2d_backward_data(c.conv, dy, weight, dx);
    backend->conv2d_backward_weights(c.conv, x, dy, dweight, dbias, true);
    backend->conv2d_forward(c.conv, x1.view, weight1.view, bias1.view, Activation::relu, y1.view);
    backend->conv2d_backward_data(c.conv, dy1.view, weight1.view, dx1.view);
    backend->conv2d_backward_weights(c.conv, x1.view, dy1.view, dweight1.view, dbias1.view, true);
    const double allowed = dtype == DType::f32 ? 1e-6 : rounding(dtype);
    expect_near(y1.values(), y.floats(), allowed);
    expect_near(dx1.values(), dx.floats(), allowed);
    expect_near(dweight1.values(), dweight.values(), 3 * allowed);
    expect_near(dbias1.values(), dbias.values(), 3e-6);
  }
}

TEST_P(Conv2dTest, the_same_call_gives_the_same_bits) {
  const ConvCase c{"", 8, 13, 13, 32, 64, {3, 3, 1, 1, 1, 1, 1}};
  const Tensor x = random(x_shape(c), 1), weight = random(weight_shape(c), 2), dy = random(y_shape(c), 4);
  std::vector<float> first_y, first_dx, first_dweight;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Tensor y = junk(y_shape(c)), dx = junk(x_shape(c)), dweight = junk(weight_shape(c));
    backend->conv2d_forward(c.conv, x, weight, ConstView{}, Activation::relu, y);
    backend->conv2d_backward_data(c.conv, dy, weight, dx);
    backend->conv2d_backward_weights(c.conv, x, dy, dweight, View{}, false);
    if (repeat == 0) first_y = y.values(), first_dx = dx.values(), first_dweight = dweight.values();
    EXPECT_EQ(y.values(), first_y);
    EXPECT_EQ(dx.values(), first_dx);
    EXPECT_EQ(dweight.values(), first_dweight);
  }
}

TEST_P(Conv2dTest, no_samples_give_zero_gradients) {
  const ConvCase c{"", 0, 5, 5, 3, 4, {3, 3, 1, 1, 0, 0, 1}};
  const Tensor x = zeros(x_shape(c)), dy = zeros(y_shape(c)), dweight = junk(weight_shape(c)),
               dbias = junk({4});
  backend->conv2d_forward(c.conv, x, dweight, dbias, Activation::none, dy);
  backend->conv2d_backward_data(c.conv, dy, dweight, x);
  backend->conv2d_backward_weights(c.conv, x, dy, dweight, dbias, true);
  EXPECT_EQ(dbias.values(), std::vector<float>(4, 12345.0f));
  backend->conv2d_backward_weights(c.conv, x, dy, dweight, dbias, false);
  EXPECT_EQ(dbias.values(), std::vector<float>(4, 0.0f));
  EXPECT_EQ(dweight.values(), std::vector<float>(4 * 3 * 9, 0.0f));
}

TEST_P(Conv2dTest, other_types_are_refused) {
  const Conv2d conv{3, 3, 1, 1, 0, 0, 1};
  const DType unknown = backend->device().kind == "cpu" ? DType::f16 : DType::f64;
  const Tensor x = zeros({2, 5, 5, 4}, unknown), weight = zeros({6, 4, 3, 3}, unknown),
               y = zeros({2, 3, 3, 6}, unknown), bf16 = zeros({2, 5, 5, 4}, DType::bf16),
               dweight = zeros({6, 4, 3, 3});
  const std::string type(name_of(unknown));
  expect_refused([&] { backend->conv2d_forward(conv, x, weight, {}, Activation::none, y); },
                 {type, "bfloat16"});
  expect_refused([&] { backend->conv2d_backward_data(conv, y, weight, x); }, {type, "bfloat16"});
  expect_refused([&] { backend->conv2d_backward_weights(conv, x, y, dweight, {}, false); },
                 {type, "bfloat16"});
  expect_refused(
      [&] {
        backend->conv2d_forward(conv, bf16, dweight, {}, Activation::none, zeros({2, 3, 3, 6}, DType::bf16));
      },
      {"conv2d_forward", "weight is float32", "bfloat16"});
  expect_refused(
      [&] {
        backend->conv2d_backward_weights(conv, bf16, zeros({2, 3, 3, 6}, DType::bf16),
                                         zeros({6, 4, 3, 3}, DType::bf16), {}, false);
      },
      {"conv2d_backward_weights", "dweight is bfloat16", "float32"});
}

TEST_P(Conv2dTest, wrong_arguments_are_refused_by_name) {
  const Conv2d conv{3, 3, 1, 1, 0, 0, 1};
  const Tensor x = random({2, 5, 5, 4}, 1), weight = random({6, 4, 3, 3}, 2), y = zeros({2, 3, 3, 6});
  const auto forward = [&](const Conv2d& how, ConstView in, ConstView w, ConstView bias, View out) {
    return [=, this] { backend->conv2d_forward(how, in, w, bias, Activation::none, out); };
  };
  expect_refused(forward(conv, x, weight, {}, zeros({2, 4, 3, 6})),
                 {"conv2d_forward", "[2, 4, 3, 6]", "[2, 3, 3, 6]"});
  expect_refused(forward(conv, x, zeros({6, 4, 3, 2}), {}, y), {"conv2d_forward", "weight", "[6, 4, 3, 3]"});
  expect_refused(forward(conv, x, weight, zeros({5}), y), {"conv2d_forward", "bias", "[6]"});
  expect_refused(forward(conv, zeros({2, 5, 5, 4}, DType::u8), weight, {}, y),
                 {"conv2d_forward", "uint8", "float32"});
  expect_refused(forward(conv, zeros({2, 5, 20}), weight, {}, y), {"conv2d_forward", "4 dimensions"});
  expect_refused(forward({3, 3, 1, 1, 0, 0, 4}, x, weight, {}, y), {"conv2d_forward", "4 groups"});
  expect_refused(forward({7, 3, 1, 1, 0, 0, 1}, x, weight, {}, y), {"conv2d_forward", "7x3"});
  expect_refused(forward(conv, ConstView{nullptr, DType::f32, x.shape()}, weight, {}, y),
                 {"conv2d_forward", "memory"});
  expect_refused(
      [&] {
        backend->conv2d_backward_data(conv, y, weight, zeros({2, 5, 5, 3}));
      },
      {"conv2d_backward_data"});
  expect_refused([&] { backend->conv2d_backward_weights(conv, x, y, weight, zeros({4}), false); },
                 {"conv2d_backward_weights", "dbias"});
}

}  // namespace
}  // namespace motley::test
