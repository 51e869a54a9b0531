#include "models/lenet.h"

#include "models/layers/layers.h"

namespace motley {

std::unique_ptr<ImageNetwork> make_lenet(const Shape& input, std::int64_t classes) {
  auto network = std::make_unique<ImageNetwork>(input, classes);
  ParameterStore& store = network->parameters;
  Sequential& body = network->body;
  const Conv2d kernel5{.kernel_h = 5, .kernel_w = 5};
  body.add(make_conv2d(store, "conv1",
                       {input[2], 6, kernel5, true, Activation::relu}));  // [28, 28, 6] of 32x32 images
  body.add(make_max_pool2d({}));                                          // [14, 14, 6]
  body.add(make_conv2d(store, "conv2", {6, 16, kernel5, true, Activation::relu}));  // [10, 10, 16]
  body.add(make_max_pool2d({}));                                                    // [5, 5, 16]
  body.add(make_flatten());
  body.add(make_linear(store, "fc1", body.output_shape()[0], 120, Activation::relu));
  body.add(make_linear(store, "fc2", 120, 84, Activation::relu));
  body.add(make_linear(store, "fc3", 84, classes, Activation::none));
  return network;
}

}  // namespace motley
