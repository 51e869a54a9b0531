// GoogLeNet: Szegedy et al., "Going deeper with convolutions", CVPR 2015, as the dynamic-partition experiments have it:
// batch norm behind every convolution, two 3x3 in place of a 5x5, no auxiliary classifiers.
#include "models/families.h"

namespace motley {
namespace {

struct Inception {
  std::int64_t conv1, reduce3, conv3, reduce5, conv5, pool;  // channels
};

Value conv_bn_relu(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out,
                   std::int64_t kernel) {
  x = net.conv_bias(x, name + ".conv", {.out = out, .kernel = kernel});
  return net.batch_norm(x, name + ".bn", Activation::relu);
}

Value inception(NetworkBuilder& net, Value x, const std::string& name, const Inception& c) {
  const Value a = conv_bn_relu(net, x, name + ".branch1", c.conv1, 1);
  Value b = conv_bn_relu(net, x, name + ".branch2.0", c.reduce3, 1);
  b = conv_bn_relu(net, b, name + ".branch2.1", c.conv3, 3);
  Value d = conv_bn_relu(net, x, name + ".branch3.0", c.reduce5, 1);
  d = conv_bn_relu(net, d, name + ".branch3.1", c.conv5, 3);
  d = conv_bn_relu(net, d, name + ".branch3.2", c.conv5, 3);
  Value e = net.max_pool(x, {.kernel = 3, .stride = 1, .pad = 1});
  e = conv_bn_relu(net, e, name + ".branch4.1", c.pool, 1);
  return net.concat({a, b, d, e});
}

std::unique_ptr<ImageNetwork> make_googlenet(const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  const Window halve{.kernel = 3, .stride = 2, .pad = 1};
  Value x = conv_bn_relu(net, net.input(), "conv1", 192, 3);
  x = inception(net, x, "inception3a", {64, 96, 128, 16, 32, 32});
  x = inception(net, x, "inception3b", {128, 128, 192, 32, 96, 64});
  x = net.max_pool(x, halve);
  x = inception(net, x, "inception4a", {192, 96, 208, 16, 48, 64});
  x = inception(net, x, "inception4b", {160, 112, 224, 24, 64, 64});
  x = inception(net, x, "inception4c", {128, 128, 256, 24, 64, 64});
  x = inception(net, x, "inception4d", {112, 144, 288, 32, 64, 64});
  x = inception(net, x, "inception4e", {256, 160, 320, 32, 128, 128});
  x = net.max_pool(x, halve);
  x = inception(net, x, "inception5a", {256, 160, 320, 32, 128, 128});
  x = inception(net, x, "inception5b", {384, 192, 384, 48, 128, 128});
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_googlenet(std::vector<ImageArch>& list) {
  list.push_back({"googlenet", cifar_image, cifar_classes, 4, make_googlenet});
}

}  // namespace motley
