// oneDNN has layouts of its own for the weights of convolutions; ResNet and VGG do without them.
#include <gtest/gtest.h>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/wide_vectors.h"
#include "models/image_archs.h"

namespace motley {
namespace {

// Conversions of the second of two training passes of two images each.
std::int64_t conversions(const std::string& name) {
  const auto backend = make_cpu_backend(2);
  const ImageArch& arch = find_image_arch(name);
  const auto network = arch.make(arch.input, arch.classes);
  network->parameters.allocate(*backend, true);
  network->parameters.initialize(1);
  network->body.reserve(*backend, 2, true);
  const auto zeros = [&](const Shape& shape) {
    Buffer buffer(*backend, static_cast<std::size_t>(shape.elements()) * sizeof(float));
    backend->fill_zero(buffer.view(DType::f32, shape));
    return buffer;
  };
  const Shape images = arch.input.with_batch(2), logits{2, arch.classes};
  const Buffer x = zeros(images), dy = zeros(logits);
  std::int64_t before = 0;
  for (std::uint32_t step = 1; step <= 2; ++step) {
    before = onednn::conversions;
    const Pass pass{*backend, true, 1, step, 0, false};
    network->body.forward(pass, x.view(DType::f32, images));
    network->body.backward(pass, x.view(DType::f32, images), dy.view(DType::f32, logits), {});
  }
  return onednn::conversions - before;
}

TEST(ConversionsTest, a_step_of_resnet_or_vgg_has_none) {
  if (!has_wide_vectors) GTEST_SKIP() << "oneDNN computes all convolutions";
  EXPECT_EQ(conversions("resnet50"), 0);
  EXPECT_EQ(conversions("resnet18"), 0);
  EXPECT_EQ(conversions("vgg16"), 0);
}

TEST(ConversionsTest, those_of_grouped_convolutions_are_counted) {
  EXPECT_GT(conversions("resnext29_2x64d"), 0);
}

}  // namespace
}  // namespace motley
