#include "models/mnist_net.h"

#include "models/network_builder.h"

namespace motley {

std::unique_ptr<ImageNetwork> make_mnist_net(const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bias(net.input(), "conv1", {.out = 32, .pad = 0}, Activation::relu);
  x = net.conv_bias(x, "conv2", {.out = 64, .pad = 0}, Activation::relu);
  x = net.channel_dropout(net.max_pool(x), 0.25);
  x = net.dropout(net.linear(net.flatten(x), "fc1", 128, Activation::relu), 0.5);
  net.classify(x, "fc2");
  return net.finish();
}

}  // namespace motley
