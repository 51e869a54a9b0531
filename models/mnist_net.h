// HetSeq's MNIST network (the one of PyTorch's MNIST example): 28x28x1 images, 10 classes, 1,199,882
// parameters.
#pragma once

#include <memory>

#include "models/image_network.h"

namespace motley {

std::unique_ptr<ImageNetwork> make_mnist_net();

}  // namespace motley
