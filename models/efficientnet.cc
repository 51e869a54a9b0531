// EfficientNet-B0: Tan, Le, "EfficientNet: rethinking model scaling for convolutional neural networks", ICML 2019, as
// the dynamic-partition experiments have it: a stem of stride 1, no last convolution, no stochastic depth.
#include "models/families.h"

namespace motley {
namespace {

struct Block {
  std::int64_t expansion, width, kernel, stride;
};

Value block(NetworkBuilder& net, Value input, const std::string& name, const Block& config) {
  const std::int64_t in = net.channels(input), width = config.expansion * in;
  Value x = input;
  if (config.expansion != 1)
    x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .kernel = 1}, Activation::swish);
  const Conv depthwise{.out = width, .kernel = config.kernel, .stride = config.stride, .groups = width};
  x = net.conv_bn(x, name + "conv2", name + "bn2", depthwise, Activation::swish);
  x = net.squeeze_excite(x, name + "se.fc1", name + "se.fc2", in / 4, Activation::swish);
  const Conv project{.out = config.width, .kernel = 1};
  if (config.stride == 1 && in == config.width)
    return net.conv_bn_add(x, name + "conv3", name + "bn3", project, input, Activation::none);
  return net.conv_bn(x, name + "conv3", name + "bn3", project, Activation::none);
}

std::unique_ptr<ImageNetwork> make_efficientnet_b0(const Shape& input, std::int64_t classes) {
  struct Stage {
    int blocks;
    Block first;
  };
  constexpr Stage stages[] = {{1, {1, 16, 3, 1}}, {2, {6, 24, 3, 2}},  {2, {6, 40, 5, 2}},
                              {3, {6, 80, 3, 2}}, {3, {6, 112, 5, 1}}, {4, {6, 192, 5, 2}},
                              {1, {6, 320, 3, 1}}};
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 32}, Activation::swish);
  int index = 0;
  for (const Stage& stage : stages) {
    Block config = stage.first;
    for (int i = 0; i < stage.blocks; ++i) {
      x = block(net, x, "layers." + std::to_string(index++) + ".", config);
      config.stride = 1;
    }
  }
  net.classify(net.dropout(net.global_avg_pool(x), 0.2), "fc");
  return net.finish();
}

}  // namespace

void add_efficientnet(std::vector<ImageArch>& list) {
  list.push_back({"efficientnet_b0", cifar_image, cifar_classes, 16, make_efficientnet_b0});
}

}  // namespace motley
