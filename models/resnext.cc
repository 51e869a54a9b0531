// ResNeXt-29: Xie, Girshick, Dollar, Tu, He, "Aggregated residual transformations for deep neural networks", CVPR 2017,
// as the dynamic-partition experiments have it: a 1x1 stem, and blocks that double their group width.
#include "models/families.h"

namespace motley {
namespace {

struct ResNext {
  std::int64_t cardinality = 1, width = 64;
};

Value block(NetworkBuilder& net, Value x, const std::string& name, std::int64_t groups,
            std::int64_t group_width, std::int64_t stride) {
  const std::int64_t out = 2 * group_width;
  Value shortcut = x;
  if (stride != 1 || net.channels(x) != out) {
    shortcut = net.conv_bn(x, name + "downsample.0", name + "downsample.1",
                           {.out = out, .kernel = 1, .stride = stride}, Activation::none);
  }
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = group_width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = group_width, .stride = stride, .groups = groups},
                  Activation::relu);
  return net.conv_bn_add(x, name + "conv3", name + "bn3", {.out = out, .kernel = 1}, shortcut,
                         Activation::relu);
}

std::unique_ptr<ImageNetwork> make(const ResNext& config, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64, .kernel = 1}, Activation::relu);
  std::int64_t group_width = config.cardinality * config.width;
  for (int stage = 0; stage < 3; ++stage) {
    for (int i = 0; i < 3; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
      x = block(net, x, name, config.cardinality, group_width, stage > 0 && i == 0 ? 2 : 1);
    }
    group_width *= 2;
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_resnext(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, ResNext>> members = {{"resnext29_2x64d", {2, 64}},
                                                                {"resnext29_4x64d", {4, 64}},
                                                                {"resnext29_8x64d", {8, 64}},
                                                                {"resnext29_32x4d", {32, 4}}};
  for (const auto& [name, config] : members) {
    list.push_back({name, cifar_image, cifar_classes, 4,
                    [config](const Shape& input, std::int64_t n) { return make(config, input, n); }});
  }
}

}  // namespace motley
