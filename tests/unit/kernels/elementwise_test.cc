#include <fmt/format.h>

#include <limits>

#include "backend_test.h"

namespace motley::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t lengths[] = {1, 15, 16, 17, 4099, 70001};

double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

class ElementwiseTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(ElementwiseTest);

TEST_P(ElementwiseTest, relu_keeps_what_is_above_zero_and_nan) {
  for (const DType dtype : element_types(*backend)) {
    const Tensor x = typed(dtype, {-1, 0, 2, nan, -std::numeric_limits<float>::infinity()}, {5}),
                 y = junk({5}, dtype);
    backend->relu_forward(x, y);
    const auto got = y.floats();
    EXPECT_EQ(got[0], 0);
    EXPECT_EQ(got[1], 0);
    EXPECT_EQ(got[2], 2);
    EXPECT_TRUE(std::isnan(got[3]));
    EXPECT_EQ(got[4], 0);
  }
}

TEST_P(ElementwiseTest, relu_gradient_passes_where_the_output_is_above_zero_also_in_place) {
  for (const DType dtype : element_types(*backend)) {
    for (const std::int64_t length : lengths) {
      const Tensor x = typed(dtype, random_values(length, 1), {length}), y = junk({length}, dtype),
                   dy = typed(dtype, random_values(length, 2), {length}), dx = junk({length}, dtype);
      backend->relu_forward(x, y);
      backend->relu_backward(y, dy, dx);
      const auto xv = x.floats(), dyv = dy.floats(), got = dx.floats();
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], xv[i] > 0 ? dyv[i] : 0);
      backend->relu_backward(y, dy, dy);
      EXPECT_EQ(dy.floats(), got);
    }
  }
}

TEST_P(ElementwiseTest, sums_are_rounded_once_and_activated_also_in_place_and_at_any_address) {
  for (const DType dtype : element_types(*backend)) {
    for (const std::int64_t length : lengths) {
      for (const std::int64_t shift : {0, 1}) {  // in elements
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), length, shift));
        const std::int64_t room = length + shift;
        const Tensor a = typed(dtype, random_values(room, 1), {room}),
                     b = typed(dtype, random_values(room, 2), {room});
        const auto view = [&](const Tensor& t) -> View {
          return {static_cast<std::byte*>(t.view().data) + static_cast<std::size_t>(shift) * size_of(dtype),
                  dtype,
                  {length}};
        };
        const auto av = a.floats(), bv = b.floats();
        for (const Activation activation : {Activation::none, Activation::relu}) {
          const Tensor y = junk({room}, dtype), in_place = typed(dtype, av, {room});
          backend->add(view(a), view(b), activation, view(y));
          auto want = junk({room}, dtype).floats();
          for (auto i = static_cast<std::size_t>(shift); i < want.size(); ++i) {
            const float sum = av[i] + bv[i];
            want[i] = activation == Activation::relu && sum < 0 ? 0 : sum;
          }
          const auto rounded = typed(dtype, want, {room}).floats();
          EXPECT_EQ(y.floats(), rounded);
          backend->add(view(in_place), view(b), activation, view(in_place));
          const auto got = in_place.floats();
          EXPECT_EQ(std::vector(got.begin() + shift, got.end()),
                    std::vector(rounded.begin() + shift, rounded.end()));
        }
      }
    }
  }
  const Tensor a = tensor({nan, 1}, {2}), b = tensor({1, nan}, {2}), y = junk({2});
  backend->add(a, b, Activation::relu, y);
  for (const float value : y.values()) EXPECT_TRUE(std::isnan(value));
}

TEST_P(ElementwiseTest, activations_and_their_gradients_are_the_definition_in_float64_also_in_place) {
  using Function = double (*)(double);
  struct Case {
    const char* what;
    Activation activation;
    Function value, derivative;
  };
  const Case all[] = {
      {"none", Activation::none, [](double x) { return x; }, [](double) { return 1.0; }},
      {"relu", Activation::relu, [](double x) { return std::max(x, 0.0); },
       [](double x) { return x > 0 ? 1.0 : 0.0; }},
      {"gelu", Activation::gelu, [](double x) { return x * 0.5 * std::erfc(-x * M_SQRT1_2); },
       [](double x) {
         return 0.5 * std::erfc(-x * M_SQRT1_2) + x * std::exp(-x * x / 2) * 0.39894228040143268;
       }},
      {"swish", Activation::swish, [](double x) { return x * logistic(x); },
       [](double x) { return logistic(x) * (1 + x * logistic(-x)); }},
      {"tanh", Activation::tanh, [](double x) { return std::tanh(x); },
       [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); }},
      {"sigmoid", Activation::sigmoid, logistic, [](double x) { return logistic(x) * logistic(-x); }},
  };
  for (const DType dtype : element_types(*backend)) {
    for (const std::int64_t length : lengths) {
      const Tensor x = typed(dtype, random_values(length, 1, -12, 12), {length}),
                   dy = typed(dtype, random_values(length, 2), {length});
      const auto xv = x.floats(), dyv = dy.floats();
      for (const Case& c : all) {
        SCOPED_TRACE(fmt::format("{} {} {}", c.what, name_of(dtype), length));
        std::vector<double> want(xv.size()), want_dx(xv.size());
        for (std::size_t i = 0; i < xv.size(); ++i) {
          const auto value = static_cast<double>(xv[i]);
          want[i] = c.value(value), want_dx[i] = static_cast<double>(dyv[i]) * c.derivative(value);
        }
        const Tensor y = junk({length}, dtype), dx = junk({length}, dtype), same = typed(dtype, xv, {length});
        backend->activation_forward(c.activation, x, y);
        backend->activation_backward(c.activation, x, dy, dx);
        backend->activation_forward(c.activation, same, same);
        // float16 stores values below 6e-5 with fewer digits.
        const double absolute = dtype == DType::f16 ? 1e-7 : 3e-7;
        expect_within(y.floats(), want, rounding(dtype), absolute);
        expect_within(dx.floats(), want_dx, rounding(dtype), absolute);
        EXPECT_EQ(same.floats(), y.floats());
      }
    }
  }
}

TEST_P(ElementwiseTest, the_sigmoid_and_its_gradient_keep_their_digits_far_from_zero) {
  const Tensor x = tensor({-80, -20, 20, 80, nan}, {5}), dy = tensor({1, 1, 1, 1, 1}, {5}), y = junk({5}),
               dx = junk({5});
  backend->activation_forward(Activation::sigmoid, x, y);
  backend->activation_backward(Activation::sigmoid, x, dy, dx);
  const auto got = y.values(), gradient = dx.values();
  const double far = std::exp(-80.0), near = std::exp(-20.0);
  const std::vector<double> want{far, near / (1 + near), 1 / (1 + near), 1}, want_dx{far, near, near, far};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(static_cast<double>(got[i]) / want[i], 1, 5e-6) << i;
    EXPECT_NEAR(static_cast<double>(gradient[i]) / want_dx[i], 1, 5e-6) << i;
  }
  EXPECT_TRUE(std::isnan(got[4]));
  EXPECT_TRUE(std::isnan(gradient[4]));
}

TEST_P(ElementwiseTest, scaling_rounds_once) {
  for (const std::int64_t length : lengths) {
    const Tensor x = random({length}, 3);
    const auto before = x.values();
    backend->scale(1.0 / 3, x);
    const auto got = x.values();
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], static_cast<float>(1.0 / 3 * static_cast<double>(before[i]))) << i;
  }
}

TEST_P(ElementwiseTest, scaling_takes_any_address_and_touches_nothing_else) {
  const Tensor x = random({1003}, 3);
  const auto before = x.values();
  backend->scale(3, view_of(x.view().as<float>() + 1, {1001}));
  const auto got = x.values();
  EXPECT_EQ(got.front(), before.front());
  EXPECT_EQ(got.back(), before.back());
  for (std::size_t i = 1; i < 1002; ++i) ASSERT_EQ(got[i], 3 * before[i]) << i;
}

TEST_P(ElementwiseTest, layouts_change_to_channels_first_and_back) {
  for (const DType dtype : element_types(*backend)) {
    for (const Shape& s :
         {Shape{1, 1, 1, 1}, Shape{3, 5, 7, 17}, Shape{2, 12, 12, 64}, Shape{1, 3, 2, 1}, Shape{2, 20, 21, 3},
          Shape{2, 2, 1, 70}, Shape{1, 11, 3, 65}, Shape{3, 1, 1, 70}}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + s.to_string());
      const Tensor x = typed(dtype, random_values(s.elements(), 1), s),
                   y = junk({s[0], s[3], s[1], s[2]}, dtype), back = junk(s, dtype);
      backend->nhwc_to_nchw(x, y);
      const auto xv = x.floats(), yv = y.floats();
      for (std::int64_t n = 0; n < s[0]; ++n)
        for (std::int64_t p = 0; p < s[1] * s[2]; ++p)
          for (std::int64_t c = 0; c < s[3]; ++c) {
            ASSERT_EQ(yv[static_cast<std::size_t>((n * s[3] + c) * s[1] * s[2] + p)],
                      xv[static_cast<std::size_t>((n * s[1] * s[2] + p) * s[3] + c)]);
          }
      backend->nchw_to_nhwc(y, back);
      EXPECT_EQ(back.floats(), xv);
    }
  }
}

TEST_P(ElementwiseTest, images_are_normalized_per_channel) {
  const std::vector<float> all_means{0.5f, 0.1307f, 0, -3, 1}, all_deviations{0.5f, 0.3081f, 2, 1, 10};
  for (const DType dtype : element_types(*backend)) {
    for (const Shape& s : {Shape{2, 16, 8, 3}, Shape{1, 5, 5, 3}, Shape{2, 70, 70, 3}, Shape{1, 4, 4, 1},
                           Shape{0, 2, 2, 3}, Shape{3, 2, 5, 5}}) {
      for (const std::int64_t shift : {0, 1}) {  // in elements
        SCOPED_TRACE(fmt::format("{} {} {}", name_of(dtype), s.to_string(), shift));
        const auto channels = static_cast<std::size_t>(s[3]);
        const std::vector<float> mean(all_means.begin(), all_means.begin() + s[3]),
            deviation(all_deviations.begin(), all_deviations.begin() + s[3]);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(s.elements() + shift));
        for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i / channels);
        const Tensor x(*backend, bytes, {s.elements() + shift}), y = junk({s.elements() + shift}, dtype);
        backend->normalize_images(
            view_of(x.view().as<std::uint8_t>() + shift, s), mean, deviation,
            {static_cast<std::byte*>(y.view().data) + static_cast<std::size_t>(shift) * size_of(dtype), dtype,
             s});
        const auto got = y.floats();
        const double allowed = dtype == DType::f32 ? 0 : rounding(dtype);
        for (std::size_t i = 0; i < static_cast<std::size_t>(s.elements()); ++i) {
          const std::size_t at = i + static_cast<std::size_t>(shift), c = i % channels;
          const double want =
              (bytes[at] / 255.0 - static_cast<double>(mean[c])) / static_cast<double>(deviation[c]);
          ASSERT_NEAR(got[at], want, 5e-7 + allowed * std::abs(want)) << i;
        }
      }
    }
  }
}

TEST_P(ElementwiseTest, wrong_arguments_are_refused_by_name) {
  const Tensor a = zeros({3}), b = zeros({4}), image = zeros({1, 2, 2, 3}, DType::u8),
               four = zeros({1, 2, 2, 3});
  const std::vector<float> two{1, 2}, three{1, 2, 3};
  expect_refused([&] { backend->relu_forward(a, b); }, {"relu_forward", "[3]", "[4]"});
  expect_refused([&] { backend->relu_forward(image, image); }, {"relu_forward", "uint8", "bfloat16"});
  expect_refused([&] { backend->relu_backward(a, b, a); }, {"relu_backward", "dy"});
  expect_refused([&] { backend->activation_forward(Activation::sigmoid, a, b); },
                 {"activation_forward", "y"});
  expect_refused([&] { backend->add(a, b, Activation::none, a); }, {"add", "b", "[3]"});
  expect_refused([&] { backend->add(a, a, Activation::none, zeros({3}, DType::bf16)); },
                 {"add", "y", "bfloat16"});
  expect_refused([&] { backend->add(a, a, Activation::tanh, a); }, {});
  expect_refused([&] { backend->nhwc_to_nchw(four, four); }, {"nhwc_to_nchw", "[1, 3, 2, 2]"});
  expect_refused([&] { backend->nchw_to_nhwc(four, a); }, {"nchw_to_nhwc"});
  expect_refused([&] { backend->normalize_images(image, two, three, four); },
                 {"normalize_images", "3 channels"});
  expect_refused([&] { backend->normalize_images(four, three, three, four); },
                 {"normalize_images", "float32"});
}

}  // namespace
}  // namespace motley::test
