#include "examples/fire_net.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "bench/image_step.h"
#include "kernels/cpu/cpu_backend.h"

namespace motley {
namespace {

ImageArch fire_net() {
  std::vector<ImageArch> list;
  add_fire_net(list);
  return list.at(0);
}

TEST(FireNet, has_the_parameters_of_its_convolutions) {
  const ImageArch arch = fire_net();
  const auto network = arch.make(arch.input, arch.classes);
  const auto conv_bn = [](std::int64_t in, std::int64_t out, std::int64_t taps) {
    return in * out * taps + 2 * out;
  };
  const auto fire = [&](std::int64_t in, std::int64_t squeeze, std::int64_t expand) {
    return conv_bn(in, squeeze, 1) + conv_bn(squeeze, expand, 1) + conv_bn(squeeze, expand, 9);
  };
  EXPECT_EQ(network->parameters.count(),
            conv_bn(3, 64, 9) + fire(64, 16, 64) + fire(128, 32, 128) + fire(256, 48, 192) + 384 * 10 + 10);
  EXPECT_EQ(network->body.output_shape(), Shape{10});
}

TEST(FireNet, learns_a_batch_by_heart) {
  const auto backend = make_cpu_backend(1);
  bench::ImageStep step(*backend, fire_net(), 16, 16, DType::f32);
  const double first = step.step(0.05);
  double last = first;
  for (int i = 0; i < 30; ++i) last = step.step(0.05);
  EXPECT_GT(first, 1.5) << "ten classes";
  EXPECT_LT(last, 0.2 * first);
}

}  // namespace
}  // namespace motley
