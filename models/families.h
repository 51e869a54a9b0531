// The families of image networks. Each function adds the members of one to the list of networks; its file says where
// the family is from. Parameters are named as torchvision names those of the same network, or in its style.
//
// The CIFAR forms are those of the dynamic-partition experiments, for 32x32x3 images and 10 classes. All take other
// sizes, too: what is left of the image is averaged before the classifier.
#pragma once

#include <vector>

#include "models/image_archs.h"
#include "models/network_builder.h"

namespace motley {

void add_vgg(std::vector<ImageArch>& list);
void add_resnet(std::vector<ImageArch>& list);
void add_preact_resnet(std::vector<ImageArch>& list);
void add_resnext(std::vector<ImageArch>& list);
void add_senet(std::vector<ImageArch>& list);
void add_densenet(std::vector<ImageArch>& list);
void add_dpn(std::vector<ImageArch>& list);
void add_googlenet(std::vector<ImageArch>& list);
void add_mobilenet(std::vector<ImageArch>& list);
void add_mobilenet_v2(std::vector<ImageArch>& list);
void add_pnasnet(std::vector<ImageArch>& list);
void add_regnet(std::vector<ImageArch>& list);
void add_efficientnet(std::vector<ImageArch>& list);
void add_shufflenet(std::vector<ImageArch>& list);
void add_shufflenet_v2(std::vector<ImageArch>& list);

inline const Shape cifar_image{32, 32, 3}, imagenet_image{224, 224, 3};
constexpr std::int64_t cifar_classes = 10, imagenet_classes = 1000;

}  // namespace motley
