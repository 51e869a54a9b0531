#include <limits>

#include "pooling.h"

namespace motley::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

const PoolCase cases[] = {
    {"mnist", 3, 24, 24, 64, {2, 2, 2, 2, 0, 0}},
    {"smallest", 1, 1, 1, 1, {1, 1, 1, 1, 0, 0}},
    {"primes", 2, 7, 11, 13, {2, 2, 2, 2, 0, 0}},
    {"overlapping", 2, 9, 8, 17, {3, 3, 2, 2, 1, 1}},
    {"overlapping_in_wide_accesses", 2, 9, 7, 20, {3, 2, 2, 1, 1, 1}},
    {"stride_one", 1, 6, 5, 130, {3, 2, 1, 1, 1, 1}},
    {"gaps_between_windows", 2, 9, 10, 5, {2, 2, 3, 4, 0, 0}},
    {"largest_window", 1, 16, 16, 3, {16, 16, 1, 1, 0, 0}},
};

std::vector<std::pair<PoolCase, DType>> cases_and_types(const Backend& backend) {
  std::vector<std::pair<PoolCase, DType>> all;
  for (const DType dtype : element_types(backend))
    for (const PoolCase& c : cases) all.emplace_back(c, dtype);
  return all;
}

class MaxPool2dTest : public BackendTest {
 protected:
  // One 2x2 window of one channel: {maximum, place}.
  std::pair<float, int> of_window(const std::vector<float>& values) {
    const Tensor x = tensor(values, {1, 2, 2, 1}), y = junk({1, 1, 1, 1}),
                 place = zeros({1, 1, 1, 1}, DType::u8);
    backend->max_pool2d_forward({}, x, y, place);
    return {y.values()[0], place.values<std::uint8_t>()[0]};
  }
};
MOTLEY_ON_EVERY_BACKEND(MaxPool2dTest);

TEST_P(MaxPool2dTest, gives_the_first_maximum_of_each_window_and_sends_the_gradient_there) {
  for (const auto& [c, dtype] : cases_and_types(*backend)) {
    SCOPED_TRACE(c.what);
    SCOPED_TRACE(name_of(dtype));
    // Few different values, so that windows have ties.
    std::vector<float> values = random_values(c.n * c.h * c.w * c.c, 1, -3, 3);
    for (float& value : values) value = std::round(value);
    const Tensor x = typed(dtype, values, {c.n, c.h, c.w, c.c}), y = junk(out_shape(c), dtype),
                 dy = typed(dtype, random_values(out_shape(c).elements(), 2), out_shape(c));
    const Tensor place = zeros(out_shape(c), DType::u8), dx = junk(x.shape(), dtype);
    backend->max_pool2d_forward(c.pool, x, y, place);
    backend->max_pool2d_backward(c.pool, dy, place, dx);

    const Shape out = out_shape(c);
    const auto got_y = y.floats(), dy_values = dy.floats();
    const auto got_place = place.values<std::uint8_t>();
    std::vector<double> want_dx(values.size()), size(values.size());
    std::size_t o = 0;
    for (std::int64_t n = 0; n < c.n; ++n)
      for (std::int64_t oh = 0; oh < out[1]; ++oh)
        for (std::int64_t ow = 0; ow < out[2]; ++ow)
          for (std::int64_t k = 0; k < c.c; ++k, ++o) {
            float best = -infinity;
            std::int64_t best_place = -1;
            std::size_t from = 0;
            for (std::int64_t r = 0; r < c.pool.kernel_h; ++r)
              for (std::int64_t s = 0; s < c.pool.kernel_w; ++s) {
                const std::int64_t h = oh * c.pool.stride_h + r - c.pool.pad_h;
                const std::int64_t w = ow * c.pool.stride_w + s - c.pool.pad_w;
                if (h < 0 || h >= c.h || w < 0 || w >= c.w) continue;
                const auto at = static_cast<std::size_t>(((n * c.h + h) * c.w + w) * c.c + k);
                if (values[at] > best) best = values[at], best_place = r * c.pool.kernel_w + s, from = at;
              }
            ASSERT_EQ(got_y[o], best);
            ASSERT_EQ(got_place[o], best_place);
            want_dx[from] += static_cast<double>(dy_values[o]);
            size[from] += std::abs(static_cast<double>(dy_values[o]));
          }
    expect_close(dx.floats(), want_dx, size, rounding(dtype));
  }
}

TEST_P(MaxPool2dTest, is_the_same_at_addresses_that_are_not_a_multiple_of_16_bytes) {
  const Pool2d pool{3, 3, 2, 2, 1, 1};
  const std::int64_t in = 2 * 7 * 7 * 8, out = 2 * 4 * 4 * 8;
  const Shape x_shape{2, 7, 7, 8}, y_shape{2, 4, 4, 8};
  const auto behind_first = [](const Tensor& t, const Shape& shape) {
    const View v = t.view();
    return View{static_cast<std::byte*>(v.data) + size_of(v.dtype), v.dtype, shape};
  };
  for (const DType dtype : element_types(*backend)) {
    SCOPED_TRACE(name_of(dtype));
    const auto x_values = random_values(in + 1, 1), dy_values = random_values(out + 1, 2);
    const Tensor x = typed(dtype, x_values, {in + 1}), dy = typed(dtype, dy_values, {out + 1});
    const Tensor y = junk({out + 1}, dtype), place = zeros({out + 1}, DType::u8), dx = junk({in + 1}, dtype);
    const Tensor whole_x = typed(dtype, {x_values.begin() + 1, x_values.end()}, x_shape);
    const Tensor whole_dy = typed(dtype, {dy_values.begin() + 1, dy_values.end()}, y_shape);
    const Tensor whole_y = junk(y_shape, dtype), whole_place = zeros(y_shape, DType::u8),
                 whole_dx = junk(x_shape, dtype);
    backend->max_pool2d_forward(pool, whole_x, whole_y, whole_place);
    backend->max_pool2d_backward(pool, whole_dy, whole_place, whole_dx);
    backend->max_pool2d_forward(pool, behind_first(x, x_shape), behind_first(y, y_shape),
                                behind_first(place, y_shape));
    backend->max_pool2d_backward(pool, behind_first(dy, y_shape), behind_first(place, y_shape),
                                 behind_first(dx, x_shape));
    const auto rest = [](auto values) {
      values.erase(values.begin());
      return values;
    };
    EXPECT_EQ(rest(y.floats()), whole_y.floats());
    EXPECT_EQ(rest(place.values<std::uint8_t>()), whole_place.values<std::uint8_t>());
    EXPECT_EQ(rest(dx.floats()), whole_dx.floats());
    EXPECT_EQ(y.floats()[0], junk({1}, dtype).floats()[0]);
    EXPECT_EQ(dx.floats()[0], junk({1}, dtype).floats()[0]);
  }
}

TEST_P(MaxPool2dTest, ties_infinities_and_nan_go_where_pytorch_puts_them) {
  EXPECT_EQ(of_window({1, 3, 3, 2}), std::pair(3.0f, 1));
  EXPECT_EQ(of_window({-infinity, -infinity, -infinity, -infinity}), std::pair(-infinity, 0));
  EXPECT_EQ(of_window({1, infinity, infinity, 2}), std::pair(infinity, 1));
  EXPECT_EQ(of_window({-0.0f, 0.0f, -1, -1}).second, 0);
  for (const auto& [values, place] :
       {std::pair(std::vector<float>{5, nan, 9, 1}, 1), std::pair(std::vector<float>{nan, nan, 9, 1}, 1),
        std::pair(std::vector<float>{nan, infinity, nan, 1}, 2)}) {
    const auto got = of_window(values);
    EXPECT_TRUE(std::isnan(got.first));
    EXPECT_EQ(got.second, place);
  }
}

TEST_P(MaxPool2dTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({1, 4, 4, 3}), y = zeros({1, 2, 2, 3}), place = zeros({1, 2, 2, 3}, DType::u8);
  expect_refused(
      [&] {
        backend->max_pool2d_forward({}, x, zeros({1, 2, 2, 4}), place);
      },
      {"max_pool2d_forward", "y"});
  expect_refused([&] { backend->max_pool2d_forward({}, x, y, y); },
                 {"max_pool2d_forward", "argmax", "uint8"});
  expect_refused([&] { backend->max_pool2d_forward({2, 2, 2, 2, 2, 0}, x, y, place); }, {"padding 2x0"});
  expect_refused([&] { backend->max_pool2d_forward({17, 16, 1, 1, 0, 0}, x, y, place); }, {"17x16"});
  expect_refused(
      [&] {
        backend->max_pool2d_backward({}, y, place, zeros({1, 6, 4, 3}));
      },
      {"max_pool2d_backward"});
}

}  // namespace
}  // namespace motley::test
