// The words in which the image networks are written: each appends a node to a network's graph and registers its
// parameters under the given name.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/image_network.h"

namespace motley {

// A square convolution with padding (kernel - 1) / 2, or `pad`.
struct Conv {
  std::int64_t out = 0;  // channels
  std::int64_t kernel = 3, stride = 1, groups = 1;
  std::int64_t pad = -1;
};

// A square pooling window.
struct Window {
  std::int64_t kernel = 2, stride = 2, pad = 0;
};

class NetworkBuilder {
 public:
  // input [height, width, channels]
  NetworkBuilder(const Shape& input, std::int64_t classes)
      : network_(std::make_unique<ImageNetwork>(input, classes)) {}

  Value input() const { return network_->body.input(); }
  const Shape& shape(Value x) const { return network_->body.shape(x); }
  std::int64_t channels(Value x) const { return shape(x)[-1]; }
  std::int64_t classes() const { return network_->classes; }
  // When all is said.
  std::unique_ptr<ImageNetwork> finish() { return std::move(network_); }

  Value conv(Value x, const std::string& name, const Conv& conv);  // without bias
  Value conv_bias(Value x, const std::string& name, const Conv& conv,
                  Activation activation = Activation::none);
  Value batch_norm(Value x, const std::string& name, Activation activation);
  // activation(batch_norm(x) + residual): one node.
  Value batch_norm_add(Value x, const std::string& name, Value residual, Activation activation);
  // Convolution without bias, and batch norm.
  Value conv_bn(Value x, const std::string& conv_name, const std::string& bn_name, const Conv& conv,
                Activation activation);
  Value conv_bn_add(Value x, const std::string& conv_name, const std::string& bn_name, const Conv& conv,
                    Value residual, Activation activation);

  Value linear(Value x, const std::string& name, std::int64_t out, Activation activation);
  // The last node: float32 logits of the network's classes.
  Value classify(Value x, const std::string& name);
  // x times weights per sample and channel (squeeze-and-excitation): global average, a 1x1 convolution to `hidden`
  // channels, `activation`, one back, sigmoid. Both have a bias.
  Value squeeze_excite(Value x, const std::string& reduce_name, const std::string& expand_name,
                       std::int64_t hidden, Activation activation);

  Value max_pool(Value x, const Window& window = {});
  Value avg_pool(Value x, const Window& window = {});
  // The averages of height x width windows that cover the image; its sides are multiples of these.
  Value avg_pool_to(Value x, std::int64_t height, std::int64_t width);
  // [height, width, channels] to [channels]; an image of one pixel stays what it is, which linear() takes as well.
  Value global_avg_pool(Value x);
  Value relu(Value x);
  Value add(Value a, Value b);
  Value concat(const std::vector<Value>& parts);
  std::pair<Value, Value> split(Value x, std::int64_t first);
  // The first `shared` channels of both are added; the rest of a and the rest of b follow.
  Value add_concat(Value a, Value b, std::int64_t shared);
  Value shuffle(Value x, std::int64_t groups);
  Value dropout(Value x, double probability);
  Value channel_dropout(Value x, double probability);
  Value flatten(Value x);

 private:
  Value append(std::unique_ptr<Layer> layer, const std::vector<Value>& inputs);
  Value append_conv(Value x, const std::string& name, const Conv& conv, bool bias, Activation activation);

  std::unique_ptr<ImageNetwork> network_;
  std::uint32_t dropouts_ = 0;
};

}  // namespace motley
