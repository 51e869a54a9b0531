#include "models/image_archs.h"

#include <algorithm>

#include "core/error.h"
#include "core/nearest_word.h"
#include "models/families.h"
#include "models/lenet.h"
#include "models/mnist_net.h"

namespace motley {

namespace {

std::vector<ImageArch> all_archs() {
  std::vector<ImageArch> list = {
      {"mnist", Shape{28, 28, 1}, 10, 6, make_mnist_net},
      {"lenet", cifar_image, cifar_classes, 16, make_lenet},
  };
  add_vgg(list);
  add_resnet(list);
  add_preact_resnet(list);
  add_resnext(list);
  add_senet(list);
  add_densenet(list);
  add_dpn(list);
  add_googlenet(list);
  add_mobilenet(list);
  add_mobilenet_v2(list);
  add_pnasnet(list);
  add_regnet(list);
  add_efficientnet(list);
  add_shufflenet(list);
  add_shufflenet_v2(list);
  return list;
}

}  // namespace

const std::vector<ImageArch>& image_archs() {
  static const std::vector<ImageArch> list = all_archs();
  return list;
}

const ImageArch& find_image_arch(const std::string& name) {
  const std::vector<ImageArch>& list = image_archs();
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const ImageArch& arch) { return arch.name == name; });
  if (found != list.end()) return *found;
  std::vector<std::string> names;
  for (const ImageArch& arch : list) names.push_back(arch.name);
  const std::string nearest = nearest_word(name, names);
  fail(ExitCode::usage, "there is no network \"{}\"{}; motley train --help-archs lists them", name,
       nearest.empty() ? "" : fmt::format(", did you mean \"{}\"?", nearest));
}

void check_fits(const ImageArch& arch, const Shape& input, const std::string& where) {
  if (std::min(input[0], input[1]) >= arch.least_side) return;
  fail(ExitCode::input, "{}: the images have {} x {} pixels; network {} needs at least {} x {}", where,
       input[0], input[1], arch.name, arch.least_side, arch.least_side);
}

}  // namespace motley
