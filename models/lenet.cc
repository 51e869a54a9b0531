#include "models/lenet.h"

#include "models/network_builder.h"

namespace motley {

std::unique_ptr<ImageNetwork> make_lenet(const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x =
      net.max_pool(net.conv_bias(net.input(), "conv1", {.out = 6, .kernel = 5, .pad = 0}, Activation::relu));
  x = net.max_pool(net.conv_bias(x, "conv2", {.out = 16, .kernel = 5, .pad = 0}, Activation::relu));
  x = net.linear(net.flatten(x), "fc1", 120, Activation::relu);
  x = net.linear(x, "fc2", 84, Activation::relu);
  net.classify(x, "fc3");
  return net.finish();
}

}  // namespace motley
