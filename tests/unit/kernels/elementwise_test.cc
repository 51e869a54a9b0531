#include <limits>

#include "backend_test.h"

namespace motley::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t lengths[] = {1, 15, 16, 17, 4099, 70001};

class ElementwiseTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(ElementwiseTest);

TEST_P(ElementwiseTest, relu_keeps_what_is_above_zero_and_nan) {
  const Tensor x = tensor({-1, 0, 2, nan, -std::numeric_limits<float>::infinity()}, {5}), y = junk({5});
  backend->relu_forward(x, y);
  const auto got = y.values();
  EXPECT_EQ(got[0], 0);
  EXPECT_EQ(got[1], 0);
  EXPECT_EQ(got[2], 2);
  EXPECT_TRUE(std::isnan(got[3]));
  EXPECT_EQ(got[4], 0);
}

TEST_P(ElementwiseTest, relu_gradient_passes_where_the_output_is_above_zero_also_in_place) {
  for (const std::int64_t length : lengths) {
    const Tensor x = random({length}, 1), y = junk({length}), dy = random({length}, 2), dx = junk({length});
    backend->relu_forward(x, y);
    backend->relu_backward(y, dy, dx);
    const auto xv = x.values(), dyv = dy.values(), got = dx.values();
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], xv[i] > 0 ? dyv[i] : 0);
    backend->relu_backward(y, dy, dy);
    EXPECT_EQ(dy.values(), got);
  }
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
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{3, 5, 7, 17}, Shape{2, 12, 12, 64}, Shape{1, 3, 2, 1},
                         Shape{2, 20, 21, 3}, Shape{2, 2, 1, 70}, Shape{1, 11, 3, 65}, Shape{3, 1, 1, 70}}) {
    const Tensor x = random(s, 1), y = junk({s[0], s[3], s[1], s[2]}), back = junk(s);
    backend->nhwc_to_nchw(x, y);
    const auto xv = x.values(), yv = y.values();
    for (std::int64_t n = 0; n < s[0]; ++n)
      for (std::int64_t p = 0; p < s[1] * s[2]; ++p)
        for (std::int64_t c = 0; c < s[3]; ++c) {
          ASSERT_EQ(yv[static_cast<std::size_t>((n * s[3] + c) * s[1] * s[2] + p)],
                    xv[static_cast<std::size_t>((n * s[1] * s[2] + p) * s[3] + c)]);
        }
    backend->nchw_to_nhwc(y, back);
    EXPECT_EQ(back.values(), xv);
  }
}

TEST_P(ElementwiseTest, images_are_normalized_per_channel) {
  const std::vector<float> all_means{0.5f, 0.1307f, 0, -3, 1}, all_deviations{0.5f, 0.3081f, 2, 1, 10};
  for (const Shape& s : {Shape{2, 16, 8, 3}, Shape{1, 5, 5, 3}, Shape{2, 70, 70, 3}, Shape{1, 4, 4, 1},
                         Shape{0, 2, 2, 3}, Shape{3, 2, 5, 5}}) {
    for (const std::int64_t shift : {0, 1}) {  // in elements
      const auto channels = static_cast<std::size_t>(s[3]);
      const std::vector<float> mean(all_means.begin(), all_means.begin() + s[3]),
          deviation(all_deviations.begin(), all_deviations.begin() + s[3]);
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(s.elements() + shift));
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i / channels);
      const Tensor x(*backend, bytes, {s.elements() + shift}), y = junk({s.elements() + shift});
      backend->normalize_images(view_of(x.view().as<std::uint8_t>() + shift, s), mean, deviation,
                                view_of(y.view().as<float>() + shift, s));
      const auto got = y.values();
      for (std::size_t i = 0; i < static_cast<std::size_t>(s.elements()); ++i) {
        const std::size_t at = i + static_cast<std::size_t>(shift), c = i % channels;
        const double want =
            (bytes[at] / 255.0 - static_cast<double>(mean[c])) / static_cast<double>(deviation[c]);
        ASSERT_NEAR(got[at], want, 5e-7) << s.to_string();
      }
    }
  }
}

TEST_P(ElementwiseTest, wrong_arguments_are_refused_by_name) {
  const Tensor a = zeros({3}), b = zeros({4}), image = zeros({1, 2, 2, 3}, DType::u8),
               four = zeros({1, 2, 2, 3});
  const std::vector<float> two{1, 2}, three{1, 2, 3};
  expect_refused([&] { backend->relu_forward(a, b); }, {"relu_forward", "[3]", "[4]"});
  expect_refused([&] { backend->relu_backward(a, b, a); }, {"relu_backward", "dy"});
  expect_refused([&] { backend->nhwc_to_nchw(four, four); }, {"nhwc_to_nchw", "[1, 3, 2, 2]"});
  expect_refused([&] { backend->nchw_to_nhwc(four, a); }, {"nchw_to_nhwc"});
  expect_refused([&] { backend->normalize_images(image, two, three, four); },
                 {"normalize_images", "3 channels"});
  expect_refused([&] { backend->normalize_images(four, three, three, four); },
                 {"normalize_images", "float32"});
}

}  // namespace
}  // namespace motley::test
