// RegNet: Radosavovic, Kosaraju, Girshick, He, Dollar, "Designing network design spaces", CVPR 2020; Y has
// squeeze-and-excitation.
#include <array>

#include "models/families.h"
#include "models/residual.h"

namespace motley {
namespace {

struct RegNet {
  std::array<Stage, 4> stages;
  std::int64_t group_width = 8;
  bool excites = false;
};

Value block(NetworkBuilder& net, Value x, const std::string& name, const RegNet& config, std::int64_t width,
            std::int64_t stride) {
  const std::int64_t in = net.channels(x);
  const Value shortcut = projected_shortcut(net, x, name, width, stride);
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2",
                  {.out = width, .stride = stride, .groups = width / config.group_width}, Activation::relu);
  if (config.excites) x = net.squeeze_excite(x, name + "se.fc1", name + "se.fc2", in / 4, Activation::relu);
  return net.conv_bn_add(x, name + "conv3", name + "bn3", {.out = width, .kernel = 1}, shortcut,
                         Activation::relu);
}

std::unique_ptr<ImageNetwork> make(const RegNet& config, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64}, Activation::relu);
  x = residual_stages(x, config.stages,
                      [&](Value from, const std::string& name, std::int64_t width, std::int64_t stride) {
                        return block(net, from, name, config, width, stride);
                      });
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_regnet(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, RegNet>> members = {
      {"regnetx_200mf", {{{{1, 24, 1}, {1, 56, 1}, {4, 152, 2}, {7, 368, 2}}}, 8, false}},
      {"regnetx_400mf", {{{{1, 32, 1}, {2, 64, 1}, {7, 160, 2}, {12, 384, 2}}}, 16, false}},
      {"regnety_400mf", {{{{1, 32, 1}, {2, 64, 1}, {7, 160, 2}, {12, 384, 2}}}, 16, true}}};
  for (const auto& [name, config] : members) {
    list.push_back({name, cifar_image, cifar_classes, 4,
                    [config](const Shape& input, std::int64_t n) { return make(config, input, n); }});
  }
}

}  // namespace motley
