// HetSeq's MNIST network (the one of PyTorch's MNIST example): 1,199,882 parameters for 28x28x1 images and 10
// classes.
#pragma once

#include <cstdint>
#include <memory>

#include "models/image_network.h"

namespace motley {

// input [height, width, channels], both sides at least 6.
std::unique_ptr<ImageNetwork> make_mnist_net(const Shape& input = Shape{28, 28, 1},
                                             std::int64_t classes = 10);

}  // namespace motley
