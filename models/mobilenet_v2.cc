// MobileNetV2: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: inverted residuals and linear bottlenecks", CVPR
// 2018, as the dynamic-partition experiments have it: ReLU instead of ReLU6, fewer strides.
#include "models/families.h"

namespace motley {
namespace {

Value block(NetworkBuilder& net, Value x, const std::string& name, std::int64_t expansion, std::int64_t out,
            std::int64_t stride) {
  Value shortcut = x;
  if (stride == 1 && net.channels(x) != out) {
    shortcut = net.conv_bn(x, name + "downsample.0", name + "downsample.1", {.out = out, .kernel = 1},
                           Activation::none);
  }
  const std::int64_t width = expansion * net.channels(x);
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = width, .stride = stride, .groups = width},
                  Activation::relu);
  const Conv project{.out = out, .kernel = 1};
  if (stride != 1) return net.conv_bn(x, name + "conv3", name + "bn3", project, Activation::none);
  return net.conv_bn_add(x, name + "conv3", name + "bn3", project, shortcut, Activation::none);
}

std::unique_ptr<ImageNetwork> make_mobilenet_v2(const Shape& input, std::int64_t classes) {
  struct Stage {
    std::int64_t expansion, width;
    int blocks;
    std::int64_t stride;
  };
  constexpr Stage stages[] = {{1, 16, 1, 1}, {6, 24, 2, 1},  {6, 32, 3, 2}, {6, 64, 4, 2},
                              {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 32}, Activation::relu);
  int index = 0;
  for (const Stage& stage : stages) {
    for (int i = 0; i < stage.blocks; ++i) {
      x = block(net, x, "layers." + std::to_string(index++) + ".", stage.expansion, stage.width,
                i == 0 ? stage.stride : 1);
    }
  }
  x = net.conv_bn(x, "conv2", "bn2", {.out = 1280, .kernel = 1}, Activation::relu);
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_mobilenet_v2(std::vector<ImageArch>& list) {
  list.push_back({"mobilenetv2", cifar_image, cifar_classes, 8, make_mobilenet_v2});
}

}  // namespace motley
