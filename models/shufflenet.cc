// ShuffleNet: Zhang, Zhou, Lin, Sun, "ShuffleNet: an extremely efficient convolutional neural network for mobile
// devices", CVPR 2018.
#include <array>

#include "models/families.h"

namespace motley {
namespace {

constexpr std::int64_t stem_width = 24;

Value block(NetworkBuilder& net, Value input, const std::string& name, std::int64_t groups, std::int64_t out,
            std::int64_t stride) {
  // Where the image is halved, the input's channels are appended.
  const std::int64_t made = stride == 2 ? out - net.channels(input) : out, middle = made / 4;
  const std::int64_t first_groups = net.channels(input) == stem_width ? 1 : groups;
  Value x = net.conv_bn(input, name + "conv1", name + "bn1",
                        {.out = middle, .kernel = 1, .groups = first_groups}, Activation::relu);
  if (first_groups > 1) x = net.shuffle(x, first_groups);
  x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = middle, .stride = stride, .groups = middle},
                  Activation::relu);
  const Conv last{.out = made, .kernel = 1, .groups = groups};
  if (stride == 1) return net.conv_bn_add(x, name + "conv3", name + "bn3", last, input, Activation::relu);
  x = net.conv_bn(x, name + "conv3", name + "bn3", last, Activation::none);
  return net.relu(net.concat({x, net.avg_pool(input, {.kernel = 3, .stride = 2, .pad = 1})}));
}

std::unique_ptr<ImageNetwork> make(std::int64_t groups, std::int64_t width, const Shape& input,
                                   std::int64_t classes) {
  constexpr std::array<int, 3> blocks = {4, 8, 4};
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = stem_width, .kernel = 1}, Activation::relu);
  for (std::size_t stage = 0; stage < blocks.size(); ++stage) {
    for (int i = 0; i < blocks[stage]; ++i) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(i) + ".";
      x = block(net, x, name, groups, width, i == 0 ? 2 : 1);
    }
    width *= 2;
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_shufflenet(std::vector<ImageArch>& list) {
  list.push_back({"shufflenet_g2", cifar_image, cifar_classes, 8,
                  [](const Shape& input, std::int64_t n) { return make(2, 200, input, n); }});
  list.push_back({"shufflenet_g3", cifar_image, cifar_classes, 8,
                  [](const Shape& input, std::int64_t n) { return make(3, 240, input, n); }});
}

}  // namespace motley
