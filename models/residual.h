// What the residual families have in common: stages of blocks, named as torchvision names them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/network_builder.h"

namespace motley {

struct Stage {
  int blocks = 1;
  std::int64_t width = 64, stride = 1;  // the stride is that of the first block
};

// Block i of stage s, both counted from 0, is block(x, "layer<s + 1>.<i>.", width, stride).
template <class Block>
Value residual_stages(Value x, std::span<const Stage> stages, const Block& block) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (int i = 0; i < stages[s].blocks; ++i) {
      const std::string name = "layer" + std::to_string(s + 1) + "." + std::to_string(i) + ".";
      x = block(x, name, stages[s].width, i == 0 ? stages[s].stride : 1);
    }
  }
  return x;
}

// The first stage has this width and stride 1, each further one twice the width and stride 2.
template <class Blocks>
std::vector<Stage> doubling_stages(const Blocks& blocks, std::int64_t width = 64) {
  std::vector<Stage> stages;
  for (const int count : blocks) {
    stages.push_back({count, width, stages.empty() ? 1 : 2});
    width *= 2;
  }
  return stages;
}

// x itself where it has the block's output shape, otherwise a 1x1 convolution with batch norm of it.
inline Value projected_shortcut(NetworkBuilder& net, Value x, const std::string& name, std::int64_t out,
                                std::int64_t stride) {
  if (stride == 1 && net.channels(x) == out) return x;
  return net.conv_bn(x, name + "downsample.0", name + "downsample.1",
                     {.out = out, .kernel = 1, .stride = stride}, Activation::none);
}

// Of a pre-activation block, whose first batch norm and ReLU gave x: the block's input where that has the output's shape,
// otherwise a 1x1 convolution of x.
inline Value preactivated_shortcut(NetworkBuilder& net, Value input, Value x, const std::string& name,
                                   std::int64_t out, std::int64_t stride) {
  if (stride == 1 && net.channels(input) == out) return input;
  return net.conv(x, name + "downsample.0", {.out = out, .kernel = 1, .stride = stride});
}

}  // namespace motley
