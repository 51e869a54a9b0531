// DenseNet: Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", CVPR 2017, with
// bottleneck layers and transitions to half the channels.
#include <array>

#include "models/families.h"

namespace motley {
namespace {

struct DenseNet {
  std::array<int, 4> layers{};
  std::int64_t growth = 32;
};

Value dense_layer(NetworkBuilder& net, Value input, const std::string& name, std::int64_t growth) {
  Value x = net.batch_norm(input, name + "norm1", Activation::relu);
  x = net.conv_bn(x, name + "conv1", name + "norm2", {.out = 4 * growth, .kernel = 1}, Activation::relu);
  x = net.conv(x, name + "conv2", {.out = growth});
  return net.concat({x, input});
}

std::unique_ptr<ImageNetwork> make(const DenseNet& config, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv(net.input(), "features.conv0", {.out = 2 * config.growth});
  for (std::size_t block = 0; block < config.layers.size(); ++block) {
    const std::string number = std::to_string(block + 1);
    for (int i = 0; i < config.layers[block]; ++i) {
      const std::string name = "features.denseblock" + number + ".denselayer" + std::to_string(i + 1) + ".";
      x = dense_layer(net, x, name, config.growth);
    }
    if (block + 1 == config.layers.size()) break;
    const std::string name = "features.transition" + number + ".";
    x = net.batch_norm(x, name + "norm", Activation::relu);
    x = net.conv(x, name + "conv", {.out = net.channels(x) / 2, .kernel = 1});
    x = net.avg_pool(x);
  }
  x = net.batch_norm(x, "features.norm5", Activation::relu);
  net.classify(net.global_avg_pool(x), "classifier");
  return net.finish();
}

}  // namespace

void add_densenet(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, DenseNet>> members = {{"densenet_cifar", {{6, 12, 24, 16}, 12}},
                                                                 {"densenet121", {{6, 12, 24, 16}, 32}},
                                                                 {"densenet169", {{6, 12, 32, 32}, 32}},
                                                                 {"densenet201", {{6, 12, 48, 32}, 32}},
                                                                 {"densenet161", {{6, 12, 36, 24}, 48}}};
  for (const auto& [name, config] : members) {
    list.push_back({name, cifar_image, cifar_classes, 8,
                    [config](const Shape& input, std::int64_t n) { return make(config, input, n); }});
  }
}

}  // namespace motley
