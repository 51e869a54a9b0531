// A small network of fire modules: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters", 2016,
// section 3.2, with batch norm.
#include "examples/fire_net.h"

#include "models/families.h"

namespace motley {
namespace {

// To few channels by 1 x 1 kernels, and from them to many by 1 x 1 and 3 x 3 kernels side by side.
Value fire(NetworkBuilder& net, Value x, const std::string& name, std::int64_t squeeze, std::int64_t expand) {
  const auto layer = [&](Value from, const std::string& part, const Conv& conv) {
    return net.conv_bn(from, name + "." + part, name + "." + part + "_bn", conv, Activation::relu);
  };
  x = layer(x, "squeeze", {.out = squeeze, .kernel = 1});
  const Value narrow = layer(x, "expand1x1", {.out = expand, .kernel = 1});
  const Value wide = layer(x, "expand3x3", {.out = expand});
  return net.concat({narrow, wide});
}

std::unique_ptr<ImageNetwork> make_fire_net(const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64}, Activation::relu);
  x = net.max_pool(fire(net, x, "fire2", 16, 64));
  x = net.max_pool(fire(net, x, "fire3", 32, 128));
  x = fire(net, x, "fire4", 48, 192);
  net.classify(net.global_avg_pool(net.dropout(x, 0.1)), "fc");
  return net.finish();
}

}  // namespace

void add_fire_net(std::vector<ImageArch>& list) {
  list.push_back({.name = "fire_net",
                  .input = cifar_image,
                  .classes = cifar_classes,
                  .least_side = 4,
                  .make = make_fire_net});
}

}  // namespace motley
