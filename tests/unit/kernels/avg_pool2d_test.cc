#include <fmt/format.h>

#include "pooling.h"

namespace motley::test {
namespace {

const PoolCase cases[] = {
    {"smallest", 1, 1, 1, 1, {1, 1, 1, 1, 0, 0}},
    {"halves", 3, 8, 8, 64, {2, 2, 2, 2, 0, 0}},
    {"primes", 2, 7, 11, 13, {2, 2, 2, 2, 0, 0}},
    {"padding_counts", 2, 9, 8, 17, {3, 3, 2, 2, 1, 1}},
    {"padding_counts_in_wide_accesses", 2, 9, 7, 24, {3, 2, 2, 1, 1, 1}},
    {"stride_one", 1, 6, 5, 130, {3, 3, 1, 1, 1, 1}},
    {"gaps_between_windows", 2, 9, 10, 5, {2, 2, 3, 4, 0, 0}},
    {"global", 3, 4, 4, 512, {4, 4, 4, 4, 0, 0}},
    {"global_odd", 2, 7, 5, 33, {7, 5, 1, 1, 0, 0}},
    {"global_large", 2, 33, 31, 20, {33, 31, 1, 1, 0, 0}},
    {"global_of_one_pixel", 5, 1, 1, 40, {1, 1, 1, 1, 0, 0}},
    {"global_with_many_channels", 1, 2, 2, 2056, {2, 2, 2, 2, 0, 0}},
    {"more_blocks_than_one", 70, 6, 6, 40, {2, 2, 2, 2, 0, 0}},
};

// visit(x index, y index) for every pair of an input and a window that it is in.
template <class Visit>
void for_each_pair(const PoolCase& c, const Visit& visit) {
  const Shape out = out_shape(c);
  std::size_t o = 0;
  for (std::int64_t n = 0; n < c.n; ++n)
    for (std::int64_t oh = 0; oh < out[1]; ++oh)
      for (std::int64_t ow = 0; ow < out[2]; ++ow)
        for (std::int64_t k = 0; k < c.c; ++k, ++o)
          for (std::int64_t r = 0; r < c.pool.kernel_h; ++r)
            for (std::int64_t s = 0; s < c.pool.kernel_w; ++s) {
              const std::int64_t h = oh * c.pool.stride_h + r - c.pool.pad_h;
              const std::int64_t w = ow * c.pool.stride_w + s - c.pool.pad_w;
              if (h < 0 || h >= c.h || w < 0 || w >= c.w) continue;
              visit(static_cast<std::size_t>(((n * c.h + h) * c.w + w) * c.c + k), o);
            }
}

class AvgPool2dTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(AvgPool2dTest);

TEST_P(AvgPool2dTest, is_the_mean_with_padding_as_zeros_in_float64_and_so_is_its_gradient) {
  for (const DType dtype : element_types(*backend)) {
    for (const PoolCase& c : cases) {
      for (const std::int64_t shift : {0, 1}) {  // in elements, of the memory that views begin in
        SCOPED_TRACE(fmt::format("{} {} {}", c.what, name_of(dtype), shift));
        const Shape in{c.n, c.h, c.w, c.c}, out = out_shape(c);
        const auto view = [&](const Tensor& t, const Shape& shape) -> View {
          return {static_cast<std::byte*>(t.view().data) + static_cast<std::size_t>(shift) * size_of(dtype),
                  dtype, shape};
        };
        const std::int64_t in_room = in.elements() + shift, out_room = out.elements() + shift;
        const Tensor x = typed(dtype, random_values(in_room, 1), {in_room}), y = junk({out_room}, dtype),
                     dy = typed(dtype, random_values(out_room, 2), {out_room}), dx = junk({in_room}, dtype);
        backend->avg_pool2d_forward(c.pool, view(x, in), view(y, out));
        backend->avg_pool2d_backward(c.pool, view(dy, out), view(dx, in));

        const auto behind = [&](const Tensor& t) {
          const auto all = t.floats();
          return std::vector<float>(all.begin() + shift, all.end());
        };
        if (shift > 0) {
          EXPECT_EQ(y.floats()[0], junk({1}, dtype).floats()[0]);
          EXPECT_EQ(dx.floats()[0], junk({1}, dtype).floats()[0]);
        }
        const auto xv = behind(x), dyv = behind(dy);
        // float16 stores what is less than this with fewer digits.
        const double least = dtype == DType::f16 ? 6.2e-5 : 0;
        std::vector<double> want(dyv.size()), size(dyv.size(), least), want_dx(xv.size()),
            size_dx(xv.size(), least);
        const auto area = static_cast<double>(c.pool.kernel_h * c.pool.kernel_w);
        for_each_pair(c, [&](std::size_t i, std::size_t o) {
          const double value = static_cast<double>(xv[i]) / area,
                       gradient = static_cast<double>(dyv[o]) / area;
          want[o] += value, size[o] += std::abs(value);
          want_dx[i] += gradient, size_dx[i] += std::abs(gradient);
        });
        expect_close(behind(y), want, size, rounding(dtype));
        expect_close(behind(dx), want_dx, size_dx, rounding(dtype));
      }
    }
  }
}

TEST_P(AvgPool2dTest, nan_stays_in_its_windows) {
  std::vector<float> values = random_values(4 * 4 * 8, 1);
  values[3] = std::nanf("");
  const Tensor x = tensor(values, {1, 4, 4, 8}), y = junk({1, 2, 2, 8});
  backend->avg_pool2d_forward({}, x, y);
  const auto got = y.values();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i == 3) << i;
}

TEST_P(AvgPool2dTest, no_samples_are_no_work) {
  backend->avg_pool2d_forward({4, 4, 4, 4, 0, 0}, zeros({0, 4, 4, 8}), zeros({0, 1, 1, 8}));
  backend->avg_pool2d_backward({4, 4, 4, 4, 0, 0}, zeros({0, 1, 1, 8}), zeros({0, 4, 4, 8}));
  backend->synchronize();
}

TEST_P(AvgPool2dTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({1, 4, 4, 3}), y = zeros({1, 2, 2, 3});
  expect_refused([&] { backend->avg_pool2d_forward({}, x, x); }, {"avg_pool2d_forward", "y", "[1, 2, 2, 3]"});
  expect_refused(
      [&] {
        backend->avg_pool2d_forward({}, x, zeros({1, 2, 2, 3}, DType::bf16));
      },
      {"avg_pool2d_forward", "y", "bfloat16"});
  expect_refused([&] { backend->avg_pool2d_forward({2, 2, 2, 2, 2, 0}, x, y); }, {"padding 2x0"});
  expect_refused([&] { backend->avg_pool2d_forward({5, 2, 2, 2, 0, 0}, x, y); }, {"5x2"});
  expect_refused(
      [&] {
        backend->avg_pool2d_backward({}, y, zeros({1, 6, 4, 3}));
      },
      {"avg_pool2d_backward", "dy"});
  const Tensor bytes = zeros({1, 4, 4, 3}, DType::u8);
  expect_refused(
      [&] {
        backend->avg_pool2d_forward({1, 1, 1, 1, 0, 0}, bytes, bytes);
      },
      {"avg_pool2d_forward", "uint8", "float32"});
}

}  // namespace
}  // namespace motley::test
