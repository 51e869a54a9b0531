// PNASNet: Liu et al., "Progressive neural architecture search", ECCV 2018, cells A and B of the dynamic-partition
// experiments. Their separable convolution is one grouped convolution with a group per input channel.
#include "models/families.h"

namespace motley {
namespace {

Conv separable(NetworkBuilder& net, Value x, std::int64_t out, std::int64_t kernel, std::int64_t stride) {
  return {.out = out, .kernel = kernel, .stride = stride, .groups = net.channels(x)};
}

// The pool of a cell, with a 1x1 convolution where the width changes.
Value pool(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out, std::int64_t stride) {
  x = net.max_pool(x, {.kernel = 3, .stride = stride, .pad = 1});
  if (stride == 1) return x;
  return net.conv_bn(x, name + "conv1", name + "bn1", {.out = out, .kernel = 1}, Activation::none);
}

Value cell_a(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out, std::int64_t stride) {
  const Value pooled = pool(net, x, name, out, stride);
  return net.conv_bn_add(x, name + "sep_conv1.conv1", name + "sep_conv1.bn1",
                         separable(net, x, out, 7, stride), pooled, Activation::relu);
}

Value cell_b(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out, std::int64_t stride) {
  const auto names = [&](int i) { return name + "sep_conv" + std::to_string(i) + "."; };
  Value left = net.conv_bn(x, names(2) + "conv1", names(2) + "bn1", separable(net, x, out, 3, stride),
                           Activation::none);
  left = net.conv_bn_add(x, names(1) + "conv1", names(1) + "bn1", separable(net, x, out, 7, stride), left,
                         Activation::relu);
  const Value pooled = pool(net, x, name, out, stride);
  const Value right = net.conv_bn_add(x, names(3) + "conv1", names(3) + "bn1",
                                      separable(net, x, out, 5, stride), pooled, Activation::relu);
  return net.conv_bn(net.concat({left, right}), name + "conv2", name + "bn2", {.out = out, .kernel = 1},
                     Activation::relu);
}

using Cell = Value (*)(NetworkBuilder&, Value, const std::string&, std::int64_t, std::int64_t);

std::unique_ptr<ImageNetwork> make(Cell cell, std::int64_t width, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = width}, Activation::relu);
  for (int stage = 0; stage < 3; ++stage) {
    if (stage > 0) {
      width *= 2;
      x = cell(net, x, "layer" + std::to_string(2 * stage) + ".", width, 2);
    }
    const std::string layer = "layer" + std::to_string(2 * stage + 1) + ".";
    for (int i = 0; i < 6; ++i) x = cell(net, x, layer + std::to_string(i) + ".", width, 1);
  }
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_pnasnet(std::vector<ImageArch>& list) {
  list.push_back({"pnasnet_a", cifar_image, cifar_classes, 4,
                  [](const Shape& input, std::int64_t n) { return make(cell_a, 44, input, n); }});
  list.push_back({"pnasnet_b", cifar_image, cifar_classes, 4,
                  [](const Shape& input, std::int64_t n) { return make(cell_b, 32, input, n); }});
}

}  // namespace motley
