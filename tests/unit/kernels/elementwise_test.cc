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

TEST_P(ElementwiseTest, layouts_change_to_channels_first_and_back) {
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{3, 5, 7, 17}, Shape{2, 12, 12, 64}, Shape{1, 3, 2, 1}}) {
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
  const std::vector<float> mean{0.5f, 0.1307f, 0}, deviation{0.5f, 0.3081f, 2};
  std::vector<std::uint8_t> bytes(2 * 16 * 8 * 3);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i / 3);
  const Tensor x(*backend, bytes, {2, 16, 8, 3});
  const Tensor y = junk({2, 16, 8, 3});
  backend->normalize_images(x, mean, deviation, y);
  const auto got = y.values();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const double want =
        (bytes[i] / 255.0 - static_cast<double>(mean[i % 3])) / static_cast<double>(deviation[i % 3]);
    ASSERT_NEAR(got[i], want, 5e-7);
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
