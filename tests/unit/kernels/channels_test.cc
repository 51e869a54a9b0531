#include <fmt/format.h>

#include "backend_test.h"

namespace motley::test {
namespace {

class ChannelsTest : public BackendTest {
 protected:
  Tensor random_of(DType dtype, const Shape& shape, std::uint32_t stream) {
    return typed(dtype, random_values(shape.elements(), stream), shape);
  }
  // `values` behind `shift` elements of memory of their own.
  struct Shifted {
    Tensor memory;
    View view;
    std::vector<float> floats() const {
      const auto all = memory.floats();
      return {all.end() - view.elements(), all.end()};
    }
    // Did what lies in front of the view stay?
    bool kept(const std::vector<float>& before) const {
      const auto all = memory.floats();
      return std::equal(before.begin(), before.end() - view.elements(), all.begin());
    }
  };
  Shifted shifted(DType dtype, const Shape& shape, std::int64_t shift, std::uint32_t stream) {
    Shifted result{random_of(dtype, {shape.elements() + shift}, stream), {}};
    result.view = {
        static_cast<std::byte*>(result.memory.view().data) + static_cast<std::size_t>(shift) * size_of(dtype),
        dtype, shape};
    return result;
  }
};
MOTLEY_ON_EVERY_BACKEND(ChannelsTest);

struct CopyCase {
  std::int64_t n, h, w, x_channels, from, y_channels, to, count;
};
const CopyCase copies[] = {
    {1, 1, 1, 1, 0, 1, 0, 1},      {2, 3, 5, 16, 0, 48, 16, 16},   {2, 3, 5, 48, 16, 16, 0, 16},
    {3, 2, 2, 24, 12, 36, 24, 12}, {1, 5, 7, 17, 3, 13, 2, 11},    {2, 2, 3, 10, 0, 10, 0, 10},
    {1, 3, 3, 8, 8, 5, 0, 0},      {70, 4, 4, 64, 32, 96, 64, 32}, {1, 2, 2, 1100, 4, 1104, 8, 1096},
    {0, 2, 2, 8, 0, 8, 0, 8},      {2, 5, 5, 20, 4, 28, 8, 12},
};

TEST_P(ChannelsTest, channels_are_copied_or_added_and_all_others_stay) {
  for (const DType dtype : element_types(*backend)) {
    for (const CopyCase& c : copies) {
      for (const bool accumulate : {false, true}) {
        for (const std::int64_t shift : {0, 1}) {  // in elements
          SCOPED_TRACE(fmt::format("{} {} of {} to {} of {}, accumulate {} shift {}", name_of(dtype), c.from,
                                   c.x_channels, c.to, c.y_channels, accumulate, shift));
          const Shifted x = shifted(dtype, {c.n, c.h, c.w, c.x_channels}, shift, 1),
                        y = shifted(dtype, {c.n, c.h, c.w, c.y_channels}, shift, 2);
          const auto before = y.memory.floats(), xv = x.floats();
          auto want = y.floats();
          for (std::int64_t p = 0; p < c.n * c.h * c.w; ++p) {
            for (std::int64_t k = 0; k < c.count; ++k) {
              float& to = want[static_cast<std::size_t>(p * c.y_channels + c.to + k)];
              const float from = xv[static_cast<std::size_t>(p * c.x_channels + c.from + k)];
              to = accumulate ? to + from : from;
            }
          }
          backend->copy_channels(x.view, c.from, y.view, c.to, c.count, accumulate);
          EXPECT_EQ(y.floats(), typed(dtype, want, y.view.shape).floats());
          EXPECT_TRUE(y.kept(before));
        }
      }
    }
  }
}

TEST_P(ChannelsTest, parts_of_one_tensor_make_it_whole_again) {
  const Tensor x = random({2, 3, 4, 21}, 1), left = junk({2, 3, 4, 8}), right = junk({2, 3, 4, 13}),
               whole = junk({2, 3, 4, 21});
  backend->copy_channels(x, 0, left, 0, 8);
  backend->copy_channels(x, 8, right, 0, 13);
  backend->copy_channels(left, 0, whole, 0, 8);
  backend->copy_channels(right, 0, whole, 8, 13);
  EXPECT_EQ(whole.values(), x.values());
}

TEST_P(ChannelsTest, shuffle_is_a_transposition_of_groups_and_another_one_undoes_it) {
  struct Case {
    Shape shape;
    std::int64_t groups;
  };
  const Case all[] = {
      {{1, 1, 1, 1}, 1},   {{2, 3, 5, 24}, 2},   {{2, 3, 5, 24}, 3}, {{2, 3, 5, 24}, 12},
      {{2, 3, 5, 24}, 8},  {{1, 4, 4, 50}, 2},   {{1, 4, 4, 60}, 3}, {{3, 2, 1, 35}, 5},
      {{3, 2, 1, 35}, 7},  {{1, 2, 2, 13}, 13},  {{1, 2, 2, 13}, 1}, {{1, 3, 3, 1024}, 2},
      {{2, 2, 2, 960}, 3}, {{40, 4, 4, 116}, 2}, {{0, 2, 2, 8}, 2},  {{1, 2, 3, 2056}, 4},
  };
  for (const DType dtype : element_types(*backend)) {
    for (const Case& c : all) {
      for (const std::int64_t shift : {0, 1}) {  // in elements
        SCOPED_TRACE(
            fmt::format("{} {} {} groups shift {}", name_of(dtype), c.shape.to_string(), c.groups, shift));
        const Shifted x = shifted(dtype, c.shape, shift, 1), y = shifted(dtype, c.shape, shift, 2),
                      back = shifted(dtype, c.shape, shift, 3);
        const auto y_before = y.memory.floats();
        backend->channel_shuffle(c.groups, x.view, y.view);
        backend->channel_shuffle(c.shape[3] / c.groups, y.view, back.view);
        const auto xv = x.floats(), got = y.floats();
        const std::int64_t channels = c.shape[3], size = channels / c.groups;
        for (std::int64_t i = 0; i < c.shape.elements(); ++i) {
          const std::int64_t pixel = i / channels, group = i % channels / size, place = i % channels % size;
          ASSERT_EQ(got[static_cast<std::size_t>(pixel * channels + place * c.groups + group)],
                    xv[static_cast<std::size_t>(i)]);
        }
        EXPECT_TRUE(y.kept(y_before));
        EXPECT_EQ(back.floats(), xv);
      }
    }
  }
}

const Shape scaled_shapes[] = {{1, 1, 1, 1},    {2, 3, 5, 7},  {3, 4, 4, 64},   {2, 9, 7, 20},
                               {1, 33, 31, 24}, {1, 1, 1, 40}, {2, 2, 3, 1030}, {1, 1, 70, 130},
                               {130, 2, 2, 16}, {0, 2, 2, 8}};

TEST_P(ChannelsTest, each_channel_of_a_sample_is_scaled_also_in_place) {
  for (const DType dtype : element_types(*backend)) {
    for (const Shape& shape : scaled_shapes) {
      for (const std::int64_t shift : {0, 1}) {  // in elements
        SCOPED_TRACE(fmt::format("{} {} shift {}", name_of(dtype), shape.to_string(), shift));
        const Shifted x = shifted(dtype, shape, shift, 1), s = shifted(dtype, {shape[0], shape[3]}, shift, 2),
                      y = shifted(dtype, shape, shift, 3);
        const auto before = y.memory.floats(), factors = s.floats();
        auto want = x.floats();
        for (std::int64_t i = 0; i < shape.elements(); ++i) {
          want[static_cast<std::size_t>(i)] *=
              factors[static_cast<std::size_t>(i / shape.elements_from(1) * shape[3] + i % shape[3])];
        }
        const auto rounded = typed(dtype, want, shape).floats();
        backend->scale_channels_forward(x.view, s.view, y.view);
        EXPECT_EQ(y.floats(), rounded);
        EXPECT_TRUE(y.kept(before));
        backend->scale_channels_forward(x.view, s.view, x.view);
        EXPECT_EQ(x.floats(), rounded);
      }
    }
  }
}

TEST_P(ChannelsTest, gradients_of_scaling_are_the_definition_in_float64_also_in_place) {
  for (const DType dtype : element_types(*backend)) {
    for (const Shape& shape : scaled_shapes) {
      for (const std::int64_t shift : {0, 1}) {  // in elements
        SCOPED_TRACE(fmt::format("{} {} shift {}", name_of(dtype), shape.to_string(), shift));
        const Shape s_shape{shape[0], shape[3]};
        const Shifted x = shifted(dtype, shape, shift, 1), s = shifted(dtype, s_shape, shift, 2),
                      dy = shifted(dtype, shape, shift, 3), dx = shifted(dtype, shape, shift, 4),
                      ds = shifted(dtype, s_shape, shift, 5);
        const auto dx_before = dx.memory.floats(), ds_before = ds.memory.floats();
        const auto xv = x.floats(), sv = s.floats(), dyv = dy.floats();
        std::vector<float> want_dx(xv.size());
        std::vector<double> want_ds(sv.size()), size(sv.size());
        for (std::size_t i = 0; i < xv.size(); ++i) {
          const auto at = static_cast<std::int64_t>(i);
          const auto c = static_cast<std::size_t>(at / shape.elements_from(1) * shape[3] + at % shape[3]);
          const double term = static_cast<double>(dyv[i]) * static_cast<double>(xv[i]);
          want_dx[i] = dyv[i] * sv[c], want_ds[c] += term, size[c] += std::abs(term);
        }
        const auto rounded = typed(dtype, want_dx, shape).floats();
        backend->scale_channels_backward(x.view, s.view, dy.view, dx.view, ds.view);
        EXPECT_EQ(dx.floats(), rounded);
        expect_close(ds.floats(), want_ds, size, rounding(dtype));
        EXPECT_TRUE(dx.kept(dx_before));
        EXPECT_TRUE(ds.kept(ds_before));
        const auto first = ds.floats();
        backend->scale_channels_backward(x.view, s.view, dy.view, dy.view, ds.view);
        EXPECT_EQ(dy.floats(), rounded);
        EXPECT_EQ(ds.floats(), first) << "the same call gave other bits";
        const Shifted dy_again = shifted(dtype, shape, shift, 3);
        backend->scale_channels_backward(x.view, s.view, dy_again.view, x.view, ds.view);
        EXPECT_EQ(x.floats(), rounded);
        EXPECT_EQ(ds.floats(), first);
      }
    }
  }
}

TEST_P(ChannelsTest, wrong_arguments_are_refused_by_name) {
  const Tensor x = zeros({1, 2, 2, 6}), y = zeros({1, 2, 2, 4}), s = zeros({1, 6}),
               other = zeros({1, 2, 3, 4});
  const auto copy = [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    return [=, this, &x, &y] { backend->copy_channels(x, from, y, to, count); };
  };
  expect_refused(copy(3, 0, 4), {"copy_channels", "4 channels from 3", "[1, 2, 2, 6]"});
  expect_refused(copy(0, 1, 4), {"copy_channels", "at 1 of y", "[1, 2, 2, 4]"});
  expect_refused(copy(-1, 0, 1), {"copy_channels"});
  expect_refused(copy(0, -1, 1), {"copy_channels"});
  expect_refused(copy(0, 0, -1), {"copy_channels"});
  expect_refused([&] { backend->copy_channels(x, 0, other, 0, 1); }, {"copy_channels", "x"});
  expect_refused(
      [&] {
        backend->copy_channels(x, 0, zeros({1, 2, 2, 4}, DType::bf16), 0, 1);
      },
      {"copy_channels", "x", "bfloat16"});
  expect_refused(
      [&] {
        backend->channel_shuffle(4, x, zeros({1, 2, 2, 6}));
      },
      {"channel_shuffle", "4 groups"});
  expect_refused(
      [&] {
        backend->channel_shuffle(0, x, zeros({1, 2, 2, 6}));
      },
      {"channel_shuffle", "0 groups"});
  expect_refused([&] { backend->channel_shuffle(2, x, y); }, {"channel_shuffle", "y"});
  expect_refused(
      [&] {
        backend->scale_channels_forward(x, zeros({1, 5}), x);
      },
      {"scale_channels_forward", "s", "[1, 6]"});
  expect_refused([&] { backend->scale_channels_backward(x, s, y, x, s); }, {"scale_channels_backward", "dy"});
  expect_refused(
      [&] {
        backend->scale_channels_backward(x, s, x, x, zeros({1, 6}, DType::bf16));
      },
      {"scale_channels_backward", "ds", "float32"});
}

}  // namespace
}  // namespace motley::test
