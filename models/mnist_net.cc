#include "models/mnist_net.h"

#include "models/layers/layers.h"

namespace motley {

std::unique_ptr<ImageNetwork> make_mnist_net(const Shape& input, std::int64_t classes) {
  auto network = std::make_unique<ImageNetwork>(input, classes);
  ParameterStore& store = network->parameters;
  Sequential& body = network->body;
  const Conv2d kernel3{.kernel_h = 3, .kernel_w = 3};
  body.add(make_conv2d(store, "conv1",
                       {input[2], 32, kernel3, true, Activation::relu}));  // [26, 26, 32] of 28x28 images
  body.add(make_conv2d(store, "conv2", {32, 64, kernel3, true, Activation::relu}));  // [24, 24, 64]
  body.add(make_max_pool2d({}));                                                     // [12, 12, 64]
  body.add(make_channel_dropout(0, 0.25));
  body.add(make_flatten());
  body.add(make_linear(store, "fc1", body.output_shape()[0], 128, Activation::relu));
  body.add(make_dropout(1, 0.5));
  body.add(make_linear(store, "fc2", 128, classes, Activation::none));
  return network;
}

}  // namespace motley
