// ShuffleNetV2: Ma, Zhang, Zheng, Sun, "ShuffleNet V2: practical guidelines for efficient CNN architecture design", ECCV
// 2018, named as torchvision's.
#include <array>

#include "models/families.h"

namespace motley {
namespace {

using Widths = std::array<std::int64_t, 4>;

// 1x1, depthwise 3x3, 1x1.
Value main_branch(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out,
                  std::int64_t stride) {
  x = net.conv_bn(x, name + "0", name + "1", {.out = out, .kernel = 1}, Activation::relu);
  x = net.conv_bn(x, name + "3", name + "4", {.out = out, .stride = stride, .groups = out}, Activation::none);
  return net.conv_bn(x, name + "5", name + "6", {.out = out, .kernel = 1}, Activation::relu);
}

Value down_block(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out) {
  const std::int64_t in = net.channels(x);
  const std::string side = name + "branch1.";
  Value left =
      net.conv_bn(x, side + "0", side + "1", {.out = in, .stride = 2, .groups = in}, Activation::none);
  left = net.conv_bn(left, side + "2", side + "3", {.out = out / 2, .kernel = 1}, Activation::relu);
  const Value right = main_branch(net, x, name + "branch2.", out / 2, 2);
  return net.shuffle(net.concat({left, right}), 2);
}

Value block(NetworkBuilder& net, Value x, const std::string& name) {
  const auto [kept, changed] = net.split(x, net.channels(x) / 2);
  const Value right = main_branch(net, changed, name + "branch2.", net.channels(changed), 1);
  return net.shuffle(net.concat({kept, right}), 2);
}

std::unique_ptr<ImageNetwork> make(const Widths& widths, const Shape& input, std::int64_t classes) {
  constexpr std::array<int, 3> blocks = {3, 7, 3};
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1.0", "conv1.1", {.out = 24}, Activation::relu);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    const std::string name = "stage" + std::to_string(stage + 2) + ".";
    x = down_block(net, x, name + "0.", widths[stage]);
    for (int i = 0; i < blocks[stage]; ++i) x = block(net, x, name + std::to_string(i + 1) + ".");
  }
  x = net.conv_bn(x, "conv5.0", "conv5.1", {.out = widths[3], .kernel = 1}, Activation::relu);
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_shufflenet_v2(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, Widths>> members = {{"shufflenetv2_0.5", {48, 96, 192, 1024}},
                                                               {"shufflenetv2_1", {116, 232, 464, 1024}},
                                                               {"shufflenetv2_1.5", {176, 352, 704, 1024}},
                                                               {"shufflenetv2_2", {224, 488, 976, 2048}}};
  for (const auto& [name, widths] : members) {
    list.push_back({name, cifar_image, cifar_classes, 8,
                    [widths](const Shape& input, std::int64_t n) { return make(widths, input, n); }});
  }
}

}  // namespace motley
