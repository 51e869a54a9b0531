// SENet: Hu, Shen, Sun, "Squeeze-and-excitation networks", CVPR 2018, on pre-activation basic blocks.
#include <array>

#include "models/families.h"
#include "models/residual.h"

namespace motley {
namespace {

Value block(NetworkBuilder& net, Value input, const std::string& name, std::int64_t width,
            std::int64_t stride) {
  Value x = net.batch_norm(input, name + "bn1", Activation::relu);
  const Value shortcut = preactivated_shortcut(net, input, x, name, width, stride);
  x = net.conv(x, name + "conv1", {.out = width, .stride = stride});
  x = net.batch_norm(x, name + "bn2", Activation::relu);
  x = net.conv(x, name + "conv2", {.out = width});
  x = net.squeeze_excite(x, name + "fc1", name + "fc2", width / 16, Activation::relu);
  return net.add(x, shortcut);
}

std::unique_ptr<ImageNetwork> make_senet18(const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.conv_bn(net.input(), "conv1", "bn1", {.out = 64}, Activation::relu);
  x = residual_stages(x, doubling_stages(std::array{2, 2, 2, 2}),
                      [&](Value from, const std::string& name, std::int64_t width, std::int64_t stride) {
                        return block(net, from, name, width, stride);
                      });
  net.classify(net.global_avg_pool(x), "fc");
  return net.finish();
}

}  // namespace

void add_senet(std::vector<ImageArch>& list) {
  list.push_back({"senet18", cifar_image, cifar_classes, 8, make_senet18});
}

}  // namespace motley
