// PreActResNet: He, Zhang, Ren, Sun, "Identity mappings in deep residual networks", ECCV 2016, as the
// dynamic-partition experiments have it: no batch norm before the last pool.
#include <array>

#include "models/families.h"
#include "models/residual.h"

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
  const Value shortcut = preactivated_shortcut(net, input, x, name, out, stride);
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
  x = residual_stages(x, doubling_stages(config.blocks),
                      [&](Value from, const std::string& name, std::int64_t width, std::int64_t stride) {
                        return block(net, from, name, config.bottleneck, width, stride);
                      });
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
