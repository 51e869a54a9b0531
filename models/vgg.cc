// VGG: Simonyan, Zisserman, "Very deep convolutional networks for large-scale image recognition", ICLR 2015. In the
// CIFAR form with batch norm and one linear layer; in the ImageNet form as torchvision's, with and without batch norm.
#include <array>

#include "core/error.h"
#include "models/families.h"

namespace motley {
namespace {

// Convolutions of each stage; a max pool ends it.
using Depths = std::array<int, 5>;
constexpr std::array<std::int64_t, 5> widths = {64, 128, 256, 512, 512};

// Names count what torchvision's Sequential holds: convolution, batch norm, ReLU, pool.
Value features(NetworkBuilder& net, const Depths& depths, bool batch_norm) {
  Value x = net.input();
  int index = 0;
  const auto name = [&] { return "features." + std::to_string(index++); };
  for (std::size_t stage = 0; stage < depths.size(); ++stage) {
    for (int i = 0; i < depths[stage]; ++i) {
      const Conv conv{.out = widths[stage]};
      if (batch_norm) {
        x = net.conv_bias(x, name(), conv);
        x = net.batch_norm(x, name(), Activation::relu);
      } else {
        x = net.conv_bias(x, name(), conv, Activation::relu);
      }
      ++index;
    }
    x = net.max_pool(x);
    ++index;
  }
  return x;
}

std::unique_ptr<ImageNetwork> make_cifar(const Depths& depths, const Shape& input, std::int64_t classes) {
  NetworkBuilder net(input, classes);
  net.classify(net.global_avg_pool(features(net, depths, true)), "classifier");
  return net.finish();
}

// torchvision's adaptive average pool makes 7x7 of any size; here of those that 7x7 windows of one size cover.
Value average_to_7x7(NetworkBuilder& net, Value x) {
  const Shape image = net.shape(x);
  if (image[0] % 7 != 0 || image[1] % 7 != 0) {
    fail(ExitCode::usage,
         "the images are {} x {}; the ImageNet form of VGG takes sides of 224 to 255 pixels, or as many more "
         "than a "
         "multiple of 224",
         net.shape(net.input())[0], net.shape(net.input())[1]);
  }
  return image[0] == 7 && image[1] == 7 ? x : net.avg_pool_to(x, 7, 7);
}

std::unique_ptr<ImageNetwork> make_imagenet(const Depths& depths, bool batch_norm, const Shape& input,
                                            std::int64_t classes) {
  NetworkBuilder net(input, classes);
  Value x = net.flatten(average_to_7x7(net, features(net, depths, batch_norm)));
  x = net.dropout(net.linear(x, "classifier.0", 4096, Activation::relu), 0.5);
  x = net.dropout(net.linear(x, "classifier.3", 4096, Activation::relu), 0.5);
  net.classify(x, "classifier.6");
  return net.finish();
}

}  // namespace

void add_vgg(std::vector<ImageArch>& list) {
  const std::vector<std::pair<std::string, Depths>> members = {{"vgg11", {1, 1, 2, 2, 2}},
                                                               {"vgg13", {2, 2, 2, 2, 2}},
                                                               {"vgg16", {2, 2, 3, 3, 3}},
                                                               {"vgg19", {2, 2, 4, 4, 4}}};
  for (const auto& [name, depths] : members) {
    list.push_back({name, cifar_image, cifar_classes, 32,
                    [depths](const Shape& input, std::int64_t n) { return make_cifar(depths, input, n); }});
  }
  for (const bool batch_norm : {false, true}) {
    for (const auto& [name, depths] : members) {
      list.push_back({name + (batch_norm ? "_bn_imagenet" : "_imagenet"), imagenet_image, imagenet_classes,
                      224, [depths, batch_norm](const Shape& input, std::int64_t n) {
                        return make_imagenet(depths, batch_norm, input, n);
                      }});
    }
  }
}

}  // namespace motley
