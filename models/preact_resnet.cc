// PreActResNet: He, Zhang, Ren, Sun, "Identity mappings in deep residual networks", ECCV 2016, as the
// dynamic-partition experiments have it: no batch norm before the last pool.
#include <array>

#include "models/families.h"

namespace motley {
namespace {

struct PreActResNet {
  bool bottleneck = false;
  std::array<int, 4> blocks{};
};

Value block(NetworkBuilder& net, Value input, const std::string& name, bool bottleneck, std::int64_t width,
            std::int64_t stride) {
  const std::int64_t out = bottleneck ? 4 * width : width;
  Value x = net.batch_norm(input, name + "bn1", Activation::relu);
  Value shortcut = input;
  if (stride != 1 || net.channels(input) != out)
    shortcut = net.conv(x, name + "downsample.0", {.out = out, .kernel = 1, .stride = stride});
  if (bottleneck) {
    x = net.conv(x, name + "conv1", {.out = width, .kernel = 1});
    x = net.batch_norm(x, name + "bn2", Activation::relu);
    x = net.conv(x, name + "conv2", {.out = width, .stride = stride});
    x = net.batch_norm(x, name + "bn3", Activation::relu);
    x = net.conv(x, name + "conv3", {.out = out, .kernel = 1});
  } else {
    x = net.conv(x, name + "conv1", {.out = width, .stride = stride});
    x = net.batch_norm(x, name + "bn2", Activation::relu);
    x = net.conv(x, name + "conv2", {.out = width});
  }
  return net.add(x, shortcut);
}

std::unique_ptr<ImageNetwork> make(const PreActResNet& config, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv(net.input(), "conv1", {.out = 64});
  std::int64_t width = 64;
  for (std::size_t stage = 0; stage < config.blocks.size(); ++stage) {
    for (int i = 0; i < config.blocks[stage]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
      x = block(net, x, name, config.bottleneck, width, stage > 0 && i == 0 ? 2 : 1);
    }
    width *= 2;
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_preact_resnet(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, PreActResNet>> members = {
      {"preactresnet18", {false, {2, 2, 2, 2}}},
      {"preactresnet34", {false, {3, 4, 6, 3}}},
      {"preactresnet50", {true, {3, 4, 6, 3}}},
      {"preactresnet101", {true, {3, 4, 23, 3}}},
      {"preactresnet152", {true, {3, 8, 36, 3}}}};
  for (const auto& [name, config] : members) {
    list.push_back({name, cifar_image, cifar_classes, 8,
                    [config](const Shape& input, std::int64_t n) { return make(config, input, n); }});
  }
}

}  // namespace motley
