// What every network in the list consists of.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "models/image_archs.h"

namespace motley {
namespace {

struct Facts {
  std::int64_t parameters;
  double multiply_adds_m;  // millions
  double rounded_to_m;
};

// CIFAR forms: counted on the code of the dynamic-partition experiments (EfficientNet without an expansion that its
// first block never uses). ImageNet forms: torchvision's documentation of its weights.
const std::map<std::string, Facts>& published() {
  constexpr double tenth = 0.1, ten = 10;
  static const std::map<std::string, Facts> facts = {
      {"mnist", {1199882, 12.0, tenth}},
      {"lenet", {62006, 0.7, tenth}},
      {"vgg11", {9231114, 152.8, tenth}},
      {"vgg13", {9416010, 228.3, tenth}},
      {"vgg16", {14728266, 313.2, tenth}},
      {"vgg19", {20040522, 398.1, tenth}},
      {"vgg11_imagenet", {132863336, 7610, ten}},
      {"vgg13_imagenet", {133047848, 11310, ten}},
      {"vgg16_imagenet", {138357544, 15470, ten}},
      {"vgg19_imagenet", {143667240, 19630, ten}},
      {"vgg11_bn_imagenet", {132868840, 7610, ten}},
      {"vgg13_bn_imagenet", {133053736, 11310, ten}},
      {"vgg16_bn_imagenet", {138365992, 15470, ten}},
      {"vgg19_bn_imagenet", {143678248, 19630, ten}},
      {"resnet18", {11173962, 555.4, tenth}},
      {"resnet34", {21282122, 1159.4, tenth}},
      {"resnet50", {23520842, 1297.8, tenth}},
      {"resnet101", {42512970, 2510.0, tenth}},
      {"resnet152", {58156618, 3722.1, tenth}},
      {"resnet18_imagenet", {11689512, 1810, ten}},
      {"resnet34_imagenet", {21797672, 3660, ten}},
      {"resnet50_imagenet", {25557032, 4090, ten}},
      {"resnet101_imagenet", {44549160, 7800, ten}},
      {"resnet152_imagenet", {60192808, 11510, ten}},
      // He et al., table 6, have shortcuts without parameters: 0.27, 0.46, 0.66, 0.85 and 1.7 million from resnet20 on.
      {"resnet8", {78042, 12.5, tenth}},
      {"resnet14", {175258, 26.7, tenth}},
      {"resnet20", {272474, 40.8, tenth}},
      {"resnet32", {466906, 69.1, tenth}},
      {"resnet44", {661338, 97.4, tenth}},
      {"resnet56", {855770, 125.7, tenth}},
      {"resnet110", {1730714, 253.1, tenth}},
      {"preactresnet18", {11171146, 555.4, tenth}},
      {"preactresnet34", {21279306, 1159.4, tenth}},
      {"preactresnet50", {23509066, 1297.8, tenth}},
      {"preactresnet101", {42501194, 2510.0, tenth}},
      {"preactresnet152", {58144842, 3722.1, tenth}},
      {"resnext29_2x64d", {9128778, 1409.5, tenth}},
      {"resnext29_4x64d", {27104586, 4228.1, tenth}},
      {"resnext29_8x64d", {89598282, 14093.1, tenth}},
      {"resnext29_32x4d", {4774218, 772.5, tenth}},
      {"senet18", {11260354, 555.5, tenth}},
      {"densenet_cifar", {1000618, 125.3, tenth}},
      {"densenet121", {6956298, 888.4, tenth}},
      {"densenet169", {12493322, 1059.8, tenth}},
      {"densenet201", {18104330, 1363.9, tenth}},
      {"densenet161", {26482378, 2467.6, tenth}},
      {"dpn26", {11574842, 665.1, tenth}},
      {"dpn92", {34236634, 2042.4, tenth}},
      {"googlenet", {6166250, 1521.8, tenth}},
      {"mobilenet", {3217226, 46.4, tenth}},
      {"mobilenetv2", {2296922, 91.2, tenth}},
      {"pnasnet_a", {130646, 28.0, tenth}},
      {"pnasnet_b", {451626, 74.5, tenth}},
      {"regnetx_200mf", {2321946, 223.3, tenth}},
      {"regnetx_400mf", {4779338, 466.2, tenth}},
      {"regnety_400mf", {5714362, 467.1, tenth}},
      {"efficientnet_b0", {3598598, 30.3, tenth}},
      {"shufflenet_g2", {887582, 39.6, tenth}},
      {"shufflenet_g3", {862768, 38.6, tenth}},
      {"shufflenetv2_0.5", {352042, 10.9, tenth}},
      {"shufflenetv2_1", {1263854, 45.0, tenth}},
      {"shufflenetv2_1.5", {2488874, 94.3, tenth}},
      {"shufflenetv2_2", {5338026, 181.6, tenth}},
  };
  return facts;
}

TEST(NetworkFacts, parameters_and_multiply_adds_are_the_published_ones) {
  for (const ImageArch& arch : image_archs()) {
    const std::unique_ptr<ImageNetwork> network = arch.make(arch.input, arch.classes);
    ASSERT_TRUE(published().contains(arch.name)) << arch.name;
    const Facts& facts = published().at(arch.name);
    EXPECT_EQ(network->parameters.count(), facts.parameters) << arch.name;
    const double multiply_adds_m = static_cast<double>(network->body.multiply_adds()) / 1e6;
    EXPECT_NEAR(multiply_adds_m, facts.multiply_adds_m, facts.rounded_to_m * 0.505) << arch.name;
    EXPECT_EQ(network->body.output_shape(), Shape{arch.classes}) << arch.name;
  }
}

TEST(NetworkFacts, every_published_network_is_in_the_list) {
  std::set<std::string> names;
  for (const ImageArch& arch : image_archs()) EXPECT_TRUE(names.insert(arch.name).second) << arch.name;
  for (const auto& [name, facts] : published()) EXPECT_TRUE(names.contains(name)) << name;
}

TEST(NetworkFacts, names_of_tensors_are_unique) {
  for (const ImageArch& arch : image_archs()) {
    const std::unique_ptr<ImageNetwork> network = arch.make(arch.input, arch.classes);
    std::set<std::string> names;
    for (const Parameter& parameter : network->parameters.all())
      EXPECT_TRUE(names.insert(parameter.name).second) << arch.name << " " << parameter.name;
    for (const Parameter& statistic : network->parameters.all_statistics())
      EXPECT_TRUE(names.insert(statistic.name).second) << arch.name << " " << statistic.name;
  }
}

}  // namespace
}  // namespace motley
