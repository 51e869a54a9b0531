// oneDNN has layouts of its own for the weights of convolutions; activations are never converted.
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

// Of each of oneDNN's convolutions: the weights, once for the output and once for the gradient of the input, which the
// first layer does not need, and their gradient. Winograd's method takes all 3 x 3 kernels without stride between 64 channels
// or more, unless the image is too small: 13 of 53 in ResNet-50, 13 of 20 in ResNet-18, 9 of 13 in VGG-16.
TEST(ConversionsTest, a_step_converts_the_weights_that_onednn_is_given_and_nothing_else) {
  const auto of_convolutions = [](std::int64_t all, std::int64_t by_winograd) {
    return 3 * (has_wide_vectors ? all - by_winograd : all) - 1;
  };
  EXPECT_EQ(conversions("resnet50"), of_convolutions(53, 13));
  EXPECT_EQ(conversions("resnet18"), of_convolutions(20, 13));
  EXPECT_EQ(conversions("vgg16"), of_convolutions(13, 9));
}

}  // namespace
}  // namespace motley
