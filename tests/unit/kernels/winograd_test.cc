// What conv2d_test.cc, which compares with the definition, does not show of convolutions by Winograd's method.
#include "kernels/cpu/winograd.h"

#include <gtest/gtest.h>

#include "backend_test.h"
#include "kernels/cpu/wide_vectors.h"

namespace motley::test {
namespace {

constexpr Conv2d three_by_three{3, 3, 1, 1, 1, 1, 1};

ConvolutionSizes sizes_of(std::int64_t side, std::int64_t in, std::int64_t out,
                          Conv2d conv = three_by_three) {
  const std::int64_t out_side = (side + 2 * conv.pad_h - conv.kernel_h) / conv.stride_h + 1;
  return {conv, DType::f32, 1, side, side, in, out_side, out_side, out};
}

TEST(WinogradTest, applies_where_it_saves_half_of_the_products) {
  if (!has_wide_vectors) GTEST_SKIP() << "oneDNN computes all convolutions";
  EXPECT_TRUE(winograd::applies(sizes_of(32, 64, 64)));
  EXPECT_TRUE(winograd::applies(sizes_of(4, 512, 512)));
  EXPECT_TRUE(winograd::applies(sizes_of(7, 512, 512)));
  EXPECT_FALSE(winograd::applies(sizes_of(2, 512, 512)));
  EXPECT_FALSE(winograd::applies(sizes_of(5, 512, 512)));
  EXPECT_FALSE(winograd::applies(sizes_of(32, 3, 64)));
  EXPECT_FALSE(winograd::applies(sizes_of(26, 32, 64)));
  EXPECT_FALSE(winograd::applies(sizes_of(32, 64, 72)));
  EXPECT_FALSE(winograd::applies(sizes_of(32, 64, 64, {3, 3, 2, 2, 1, 1, 1})));
  EXPECT_FALSE(winograd::applies(sizes_of(32, 64, 64, {3, 3, 1, 1, 1, 1, 2})));
  EXPECT_FALSE(winograd::applies(sizes_of(32, 64, 64, {5, 5, 1, 1, 2, 2, 1})));
}

// As a part of the norm.
double difference_of(const std::vector<float>& got, const std::vector<double>& want) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference / norm);
}

// More tiles than a chunk holds, and a last chunk that is not full. Kernels of 144 channels are large enough for the tiles of
// one sample to be computed by columns, the last of which stand alone; those of five samples are too many.
struct ManyTiles {
  DType dtype;
  std::int64_t side, channels;
};
class ManyTilesTest : public testing::TestWithParam<ManyTiles> {
 protected:
  static constexpr std::int64_t n = 5;
  const std::int64_t side = GetParam().side, channels = GetParam().channels;

  struct Results {
    std::vector<float> y, dx, dweight, dbias;
  };
  // Of samples [first, first + count).
  Results results(int threads, std::int64_t first, std::int64_t count) const {
    const auto backend = make_cpu_backend(threads, 0);
    const Shape images{count, side, side, channels}, kernels{channels, channels, 3, 3};
    const auto samples = [&](std::uint32_t stream) {
      const std::vector<float> all = random_values(n * side * side * channels, stream);
      const std::int64_t size = side * side * channels;
      return typed(*backend, GetParam().dtype,
                   {all.begin() + first * size, all.begin() + (first + count) * size}, images);
    };
    const Tensor x = samples(1), dy = samples(2), y = samples(3), dx = samples(3);
    const Tensor weight = typed(*backend, GetParam().dtype, random_values(kernels.elements(), 4), kernels);
    const Tensor bias{*backend, random_values(channels, 5), {channels}};
    const Tensor dweight{*backend, DType::f32, kernels}, dbias{*backend, DType::f32, {channels}};
    backend->conv2d_forward(three_by_three, x, weight, bias, Activation::relu, y);
    backend->conv2d_backward_data(three_by_three, dy, weight, dx);
    backend->conv2d_backward_weights(three_by_three, x, dy, dweight, dbias, false);
    return {y.floats(), dx.floats(), dweight.values(), dbias.values()};
  }
};
INSTANTIATE_TEST_SUITE_P(, ManyTilesTest,
                         testing::Values(ManyTiles{DType::f32, 36, 64}, ManyTiles{DType::bf16, 36, 64},
                                         ManyTiles{DType::f32, 44, 144}, ManyTiles{DType::bf16, 44, 144}),
                         [](const auto& tiles) {
                           return fmt::format("{}_{}", name_of(tiles.param.dtype), tiles.param.channels);
                         });

TEST_P(ManyTilesTest, have_the_same_bits_on_any_number_of_threads) {
  if (!has_wide_vectors) GTEST_SKIP() << "oneDNN computes all convolutions";
  const Results one = results(1, 0, n), three = results(3, 0, n);
  EXPECT_EQ(one.y, three.y);
  EXPECT_EQ(one.dx, three.dx);
  EXPECT_EQ(one.dweight, three.dweight);
  EXPECT_EQ(one.dbias, three.dbias);
}

TEST_P(ManyTilesTest, a_sample_has_the_same_bits_in_any_batch) {
  if (!has_wide_vectors) GTEST_SKIP() << "oneDNN computes all convolutions";
  const Results all = results(2, 0, n), last = results(2, n - 1, 1);
  const auto before = static_cast<std::ptrdiff_t>((n - 1) * side * side * channels);
  EXPECT_EQ(std::vector<float>(all.y.begin() + before, all.y.end()), last.y);
  EXPECT_EQ(std::vector<float>(all.dx.begin() + before, all.dx.end()), last.dx);
}

TEST_P(ManyTilesTest, gradients_of_weights_are_those_of_all_samples) {
  const Results all = results(2, 0, n);
  std::vector<double> dweight(all.dweight.size()), dbias(all.dbias.size());
  for (std::int64_t sample = 0; sample < n; ++sample) {
    const Results own = results(2, sample, 1);
    for (std::size_t i = 0; i < dweight.size(); ++i) dweight[i] += static_cast<double>(own.dweight[i]);
    for (std::size_t i = 0; i < dbias.size(); ++i) dbias[i] += static_cast<double>(own.dbias[i]);
  }
  EXPECT_LE(difference_of(all.dweight, dweight), 2e-6);
  EXPECT_LE(difference_of(all.dbias, dbias), 1e-6);
}

// Of a layer of ResNet-50, against sums in float64 at some outputs.
TEST(WinogradTest, rounds_to_two_millionths_of_the_norm) {
  constexpr std::int64_t side = 8, channels = 256;
  const auto backend = make_cpu_backend(2, 0);
  const std::vector<float> x = random_values(side * side * channels, 1),
                           weight = random_values(channels * channels * 9, 2, -0.02f, 0.02f);
  const Tensor y{*backend, DType::f32, {1, side, side, channels}};
  backend->conv2d_forward(three_by_three, Tensor{*backend, x, {1, side, side, channels}},
                          Tensor{*backend, weight, {channels, channels, 3, 3}}, {}, Activation::none, y);
  const std::vector<float> got = y.values();
  std::vector<float> some;
  std::vector<double> wanted;
  for (std::int64_t pixel = 0; pixel < side * side; ++pixel) {
    for (std::int64_t k = pixel % 16; k < channels; k += 16) {
      double want = 0;
      for (std::int64_t tap = 0; tap < 9; ++tap) {
        const std::int64_t h = pixel / side + tap / 3 - 1, w = pixel % side + tap % 3 - 1;
        if (h < 0 || h >= side || w < 0 || w >= side) continue;
        for (std::int64_t c = 0; c < channels; ++c) {
          want += static_cast<double>(x[static_cast<std::size_t>((h * side + w) * channels + c)]) *
                  static_cast<double>(weight[static_cast<std::size_t>((k * channels + c) * 9 + tap)]);
        }
      }
      some.push_back(got[static_cast<std::size_t>(pixel * channels + k)]);
      wanted.push_back(want);
    }
  }
  EXPECT_LE(difference_of(some, wanted), 2e-6);
}

}  // namespace
}  // namespace motley::test
