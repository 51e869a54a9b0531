// MobileNet: Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017.
#include "models/families.h"

namespace motley {
namespace {

struct Block {
  std::int64_t width, stride;
};

std::unique_ptr<ImageNetwork> make_mobilenet(const Shape& input, std::int64_t classes) {
  constexpr Block blocks[] = {{64, 1},  {128, 2}, {128, 1}, {256, 2}, {256, 1},  {512, 2}, {512, 1},
                              {512, 1}, {512, 1}, {512, 1}, {512, 1}, {1024, 2}, {1024, 1}};
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 32}, Activation::relu);
  int index = 0;
  for (const Block& block : blocks) {
    const std::string name = "layers." + std::to_string(index++) + ".";
    const std::int64_t in = net.channels(x);
    x = net.conv_bn(x, name + "conv1", name + "bn1", {.out = in, .stride = block.stride, .groups = in},
                    Activation::relu);
    x = net.conv_bn(x, name + "conv2", name + "bn2", {.out = block.width, .kernel = 1}, Activation::relu);
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_mobilenet(std::vector<ImageArch>& list) {
  list.push_back({"mobilenet", cifar_image, cifar_classes, 16, make_mobilenet});
}

}  // namespace motley
