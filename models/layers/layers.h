// The layers of the image networks. Each registers its parameters as "<name>.weight" and "<name>.bias".
#pragma once

#include <memory>
#include <string>

#include "models/layer.h"
#include "models/parameter_store.h"

namespace motley {

// Convolution with optional fused ReLU. Input and output [height, width, channels]; weight
// [out_channels, in_channels / groups, kernel_h, kernel_w], bias [out_channels]; initialised as PyTorch's
// Conv2d.
struct ConvSpec {
  std::int64_t in_channels = 0, out_channels = 0;
  Conv2d geometry;
  bool bias = true;
  Activation activation = Activation::none;
};
std::unique_ptr<Layer> make_conv2d(ParameterStore& store, const std::string& name, const ConvSpec& spec);

// y = activation(x W^T + b): [in_features] to [out_features], initialised as PyTorch's Linear.
std::unique_ptr<Layer> make_linear(ParameterStore& store, const std::string& name, std::int64_t in_features,
                                   std::int64_t out_features, Activation activation);

std::unique_ptr<Layer> make_max_pool2d(const Pool2d& pool);

// Works in place. `index` sets one dropout of a network apart from the others.
std::unique_ptr<Layer> make_dropout(std::uint32_t index, double probability);
// Drops whole channels of [height, width, channels] (PyTorch's Dropout2d).
std::unique_ptr<Layer> make_channel_dropout(std::uint32_t index, double probability);

// [height, width, channels] to [channels * height * width] in PyTorch's order, channels first.
std::unique_ptr<Layer> make_flatten();

}  // namespace motley
