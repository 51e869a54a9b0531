// The layers of the image networks. Those with parameters register them as "<name>.weight" and "<name>.bias",
// initialised as PyTorch does, in the order of their calls.
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

// y = activation((x - mean) / sqrt(variance + 1e-5) * weight + bias + residual) per channel of [height, width, channels]
// or [features], initialised as PyTorch's BatchNorm2d. In training mean and variance are those of the batch, over all
// ranks with Pass::statistics, and move running_mean and running_var by momentum 0.1; in evaluation they are those two.
// Two inputs, x and a residual of its shape, when `residual` is set; the activation is none or relu then, else also
// swish.
struct BatchNormSpec {
  std::int64_t channels = 0;
  Activation activation = Activation::none;
  bool residual = false;
};
std::unique_ptr<Layer> make_batch_norm(ParameterStore& store, const std::string& name,
                                       const BatchNormSpec& spec);

// y = activation(x W^T + b): [in_features], or an image of one pixel with as many channels, to [out_features],
// initialised as PyTorch's Linear.
struct LinearSpec {
  std::int64_t in_features = 0, out_features = 0;
  Activation activation = Activation::none;
  // The weight is that of a 1x1 convolution, [out_features, in_features, 1, 1].
  bool as_convolution = false;
  // The output is float32 whatever the type of the activations: logits.
  bool float_output = false;
};
std::unique_ptr<Layer> make_linear(ParameterStore& store, const std::string& name, const LinearSpec& spec);

std::unique_ptr<Layer> make_max_pool2d(const Pool2d& pool);
// Padding counts as zeros.
std::unique_ptr<Layer> make_avg_pool2d(const Pool2d& pool);
// [height, width, channels] to [channels].
std::unique_ptr<Layer> make_global_avg_pool();

// ReLU, swish or sigmoid of any tensor.
std::unique_ptr<Layer> make_activation(Activation activation);
// The sum of two tensors of one shape.
std::unique_ptr<Layer> make_add();
// x [height, width, channels] times s [channels].
std::unique_ptr<Layer> make_scale_channels();

// Channels of several images of one size, one behind the other.
std::unique_ptr<Layer> make_concat();
// Channels [0, first) and the rest, as two tensors.
std::unique_ptr<Layer> make_split(std::int64_t first);
// Two images of one size: the first `shared` channels are added, the rest of the first input and that of the second
// follow.
std::unique_ptr<Layer> make_add_concat(std::int64_t shared);
// PyTorch's ChannelShuffle.
std::unique_ptr<Layer> make_channel_shuffle(std::int64_t groups);

// `index` sets one dropout of a network apart from the others.
std::unique_ptr<Layer> make_dropout(std::uint32_t index, double probability);
// Drops whole channels of [height, width, channels] (PyTorch's Dropout2d).
std::unique_ptr<Layer> make_channel_dropout(std::uint32_t index, double probability);

// [height, width, channels] to [channels * height * width] in PyTorch's order, channels first.
std::unique_ptr<Layer> make_flatten();

}  // namespace motley
