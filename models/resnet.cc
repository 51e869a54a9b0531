// ResNet: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016, with the stride on the 3x3
// convolution of the bottleneck. The CIFAR form has a 3x3 stem and no pool behind it. The narrow networks of section 4.2
// have three stages of 16, 32 and 64 channels; shortcuts between stages are projections (option B there).
#include <vector>

#include "models/families.h"
#include "models/residual.h"

namespace motley {
namespace {

struct ResNet {
  bool bottleneck = false;
  std::vector<int> blocks;  // of each stage
  std::int64_t width = 64;  // of the stem and the first stage
};

Value block(NetworkBuilder& net, Value x, const std::string& name, bool bottleneck, std::int64_t width,
            std::int64_t stride) {
  const std::int64_t out = bottleneck ? 4 * width : width;
  const Value shortcut = projected_shortcut(net, x, name, out, stride);
  if (!bottleneck) {
    x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .stride = stride}, Activation::relu);
    return net.conv_bn_add(x, name + "conv2", name + "bn2", {.out = width}, shortcut, Activation::relu);
  }
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = width, .stride = stride}, Activation::relu);
  return net.conv_bn_add(x, name + "conv3", name + "bn3", {.out = out, .kernel = 1}, shortcut,
                         Activation::relu);
}

std::unique_ptr<ImageNetwork> make(const ResNet& config, bool imagenet, const Shape& input,
                                   std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.input();
  if (imagenet) {
    x = net.conv_bn(x, "conv1", "bn1", {.out = config.width, .kernel = 7, .stride = 2}, Activation::relu);
    x = net.max_pool(x, {.kernel = 3, .stride = 2, .pad = 1});
  } else {
    x = net.conv_bn(x, "conv1", "bn1", {.out = config.width}, Activation::relu);
  }
  x = residual_stages(x, doubling_stages(config.blocks, config.width),
                      [&](Value from, const std::string& name, std::int64_t width, std::int64_t stride) {
                        return block(net, from, name, config.bottleneck, width, stride);
                      });
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_resnet(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, ResNet>> members = {{"resnet18", {false, {2, 2, 2, 2}}},
                                                               {"resnet34", {false, {3, 4, 6, 3}}},
                                                               {"resnet50", {true, {3, 4, 6, 3}}},
                                                               {"resnet101", {true, {3, 4, 23, 3}}},
                                                               {"resnet152", {true, {3, 8, 36, 3}}}};
  for (const bool imagenet : {false, true}) {
    for (const auto& [name, config] : members) {
      list.push_back({imagenet ? name + "_imagenet" : name, imagenet ? imagenet_image : cifar_image,
                      imagenet ? imagenet_classes : cifar_classes, imagenet ? 32 : 8,
                      [config, imagenet](const Shape& input, std::int64_t classes) {
                        return make(config, imagenet, input, classes);
                      }});
    }
  }
  for (const int blocks : {1, 2, 3, 5, 7, 9, 18}) {
    const ResNet config{false, {blocks, blocks, blocks}, 16};
    list.push_back(
        {"resnet" + std::to_string(6 * blocks + 2), cifar_image, cifar_classes, 4,
         [config](const Shape& input, std::int64_t classes) { return make(config, false, input, classes); }});
  }
}

}  // namespace motley
