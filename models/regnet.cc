// RegNet: Radosavovic, Kosaraju, Girshick, He, Dollar, "Designing network design spaces", CVPR 2020; Y has
// squeeze-and-excitation.
#include <array>

#include "models/families.h"

namespace motley {
namespace {

struct RegNet {
  std::array<int, 4> depths{};
  std::array<std::int64_t, 4> widths{};
  std::int64_t group_width = 8;
  bool excites = false;
};

Value block(NetworkBuilder& net, Value x, const std::string& name, const RegNet& config, std::int64_t width,
            std::int64_t stride) {
  const std::int64_t in = net.channels(x);
  Value shortcut = x;
  if (stride != 1 || in != width) {
    shortcut = net.conv_bn(x, name + "downsample.0", name + "downsample.1",
                           {.out = width, .kernel = 1, .stride = stride}, Activation::none);
  }
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2",
                  {.out = width, .stride = stride, .groups = width / config.group_width}, Activation::relu);
  if (config.excites) x = net.squeeze_excite(x, name + "se.fc1", name + "se.fc2", in / 4, Activation::relu);
  return net.conv_bn_add(x, name + "conv3", name + "bn3", {.out = width, .kernel = 1}, shortcut,
                         Activation::relu);
}

std::unique_ptr<ImageNetwork> make(const RegNet& config, const Shape& input, std::int64_t classes) {
  constexpr std::array<std::int64_t, 4> strides = {1, 1, 2, 2};
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64}, Activation::relu);
  for (std::size_t stage = 0; stage < config.depths.size(); ++stage) {
    for (int i = 0; i < config.depths[stage]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
      x = block(net, x, name, config, config.widths[stage], i == 0 ? strides[stage] : 1);
    }
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_regnet(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, RegNet>> members = {
      {"regnetx_200mf", {{1, 1, 4, 7}, {24, 56, 152, 368}, 8, false}},
      {"regnetx_400mf", {{1, 2, 7, 12}, {32, 64, 160, 384}, 16, false}},
      {"regnety_400mf", {{1, 2, 7, 12}, {32, 64, 160, 384}, 16, true}}};
  for (const auto& [name, config] : members) {
    list.push_back({name, cifar_image, cifar_classes, 4,
                    [config](const Shape& input, std::int64_t n) { return make(config, input, n); }});
  }
}

}  // namespace motley
