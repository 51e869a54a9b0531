// ResNeXt-29: Xie, Girshick, Dollar, Tu, He, "Aggregated residual transformations for deep neural networks", CVPR 2017,
// as the dynamic-partition experiments have it: a 1x1 stem, and blocks that double their group width.
#include <array>

#include "models/families.h"
#include "models/residual.h"

namespace motley {
namespace {

struct ResNext {
  std::int64_t cardinality = 1, width = 64;
};

Value block(NetworkBuilder& net, Value x, const std::string& name, std::int64_t groups,
            std::int64_t group_width, std::int64_t stride) {
  const std::int64_t out = 2 * group_width;
  const Value shortcut = projected_shortcut(net, x, name, out, stride);
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = group_width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = group_width, .stride = stride, .groups = groups},
                  Activation::relu);
  return net.conv_bn_add(x, name + "conv3", name + "bn3", {.out = out, .kernel = 1}, shortcut,
                         Activation::relu);
}

std::unique_ptr<ImageNetwork> make(const ResNext& config, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64, .kernel = 1}, Activation::relu);
  x = residual_stages(
      x, doubling_stages(std::array{3, 3, 3}, config.cardinality * config.width),
      [&](Value from, const std::string& name, std::int64_t group_width, std::int64_t stride) {
        return block(net, from, name, config.cardinality, group_width, stride);
      });
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
