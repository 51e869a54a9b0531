// Dual path networks: Chen, Li, Xiao, Jin, Yan, Feng, NIPS 2017. A block's first channels are added to those of its
// input, as in ResNet; the rest of both is concatenated, as in DenseNet.
#include <array>

#include "models/families.h"

namespace motley {
namespace {

constexpr std::array<std::int64_t, 4> widths = {96, 192, 384, 768}, outputs = {256, 512, 1024, 2048},
                                      depths = {16, 32, 24, 128};
constexpr std::int64_t groups = 32;
using Blocks = std::array<int, 4>;

Value block(NetworkBuilder& net, Value x, const std::string& name, std::size_t stage, bool first) {
  const std::int64_t width = widths[stage], out = outputs[stage] + depths[stage];
  const std::int64_t stride = first && stage > 0 ? 2 : 1;
  Value shortcut = x;
  if (first) {
    shortcut = net.conv_bn(x, name + "downsample.0", name + "downsample.1",
                           {.out = out, .kernel = 1, .stride = stride}, Activation::none);
  }
  x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = width, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = width, .stride = stride, .groups = groups},
                  Activation::relu);
  x = net.conv_bn(x, name + "conv3", name + "bn3", {.out = out, .kernel = 1}, Activation::none);
  return net.relu(net.add_concat(shortcut, x, outputs[stage]));
}

std::unique_ptr<ImageNetwork> make(const Blocks& blocks, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64}, Activation::relu);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int i = 0; i < blocks[stage]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
      x = block(net, x, name, stage, i == 0);
    }
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_dpn(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, Blocks>> members = {{"dpn26", {2, 2, 2, 2}},
                                                               {"dpn92", {3, 4, 20, 3}}};
  for (const auto& [name, blocks] : members) {
    list.push_back({name, cifar_image, cifar_classes, 8,
                    [blocks](const Shape& input, std::int64_t n) { return make(blocks, input, n); }});
  }
}

}  // namespace motley
