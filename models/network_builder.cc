#include "models/network_builder.h"

#include "models/layers/layers.h"

namespace motley {
namespace {

Pool2d pool_of(const Window& window) {
  return {.kernel_h = window.kernel,
          .kernel_w = window.kernel,
          .stride_h = window.stride,
          .stride_w = window.stride,
          .pad_h = window.pad,
          .pad_w = window.pad};
}

}  // namespace

Value NetworkBuilder::append(std::unique_ptr<Layer> layer, const std::vector<Value>& inputs) {
  return network_->body.add(std::move(layer), inputs).front();
}

Value NetworkBuilder::append_conv(Value x, const std::string& name, const Conv& conv, bool bias,
                                  Activation activation) {
  const std::int64_t pad = conv.pad >= 0 ? conv.pad : (conv.kernel - 1) / 2;
  const Conv2d geometry{.kernel_h = conv.kernel,
                        .kernel_w = conv.kernel,
                        .stride_h = conv.stride,
                        .stride_w = conv.stride,
                        .pad_h = pad,
                        .pad_w = pad,
                        .groups = conv.groups};
  MOTLEY_CHECK(channels(x) % conv.groups == 0 && conv.out % conv.groups == 0);
  return append(make_conv2d(network_->parameters, name, {channels(x), conv.out, geometry, bias, activation}),
                {x});
}

Value NetworkBuilder::conv(Value x, const std::string& name, const Conv& conv) {
  return append_conv(x, name, conv, false, Activation::none);
}

Value NetworkBuilder::conv_bias(Value x, const std::string& name, const Conv& conv, Activation activation) {
  return append_conv(x, name, conv, true, activation);
}

Value NetworkBuilder::batch_norm(Value x, const std::string& name, Activation activation) {
  return append(make_batch_norm(network_->parameters, name, {channels(x), activation, false}), {x});
}

Value NetworkBuilder::batch_norm_add(Value x, const std::string& name, Value residual,
                                     Activation activation) {
  return append(make_batch_norm(network_->parameters, name, {channels(x), activation, true}), {x, residual});
}

Value NetworkBuilder::conv_bn(Value x, const std::string& conv_name, const std::string& bn_name,
                              const Conv& c, Activation activation) {
  return batch_norm(conv(x, conv_name, c), bn_name, activation);
}

Value NetworkBuilder::conv_bn_add(Value x, const std::string& conv_name, const std::string& bn_name,
                                  const Conv& c, Value residual, Activation activation) {
  return batch_norm_add(conv(x, conv_name, c), bn_name, residual, activation);
}

Value NetworkBuilder::linear(Value x, const std::string& name, std::int64_t out, Activation activation) {
  return append(make_linear(network_->parameters, name,
                            {.in_features = channels(x), .out_features = out, .activation = activation}),
                {x});
}

Value NetworkBuilder::classify(Value x, const std::string& name) {
  return append(make_linear(network_->parameters, name,
                            {.in_features = channels(x), .out_features = classes(), .float_output = true}),
                {x});
}

Value NetworkBuilder::squeeze_excite(Value x, const std::string& reduce_name, const std::string& expand_name,
                                     std::int64_t hidden, Activation activation) {
  ParameterStore& store = network_->parameters;
  const std::int64_t width = channels(x);
  Value scale = append(make_global_avg_pool(), {x});
  scale = append(
      make_linear(
          store, reduce_name,
          {.in_features = width, .out_features = hidden, .activation = activation, .as_convolution = true}),
      {scale});
  scale = append(make_linear(store, expand_name,
                             {.in_features = hidden,
                              .out_features = width,
                              .activation = Activation::sigmoid,
                              .as_convolution = true}),
                 {scale});
  return append(make_scale_channels(), {x, scale});
}

Value NetworkBuilder::max_pool(Value x, const Window& window) {
  return append(make_max_pool2d(pool_of(window)), {x});
}

Value NetworkBuilder::avg_pool(Value x, const Window& window) {
  return append(make_avg_pool2d(pool_of(window)), {x});
}

Value NetworkBuilder::avg_pool_to(Value x, std::int64_t height, std::int64_t width) {
  const Shape& image = shape(x);
  MOTLEY_CHECK(image[0] % height == 0 && image[1] % width == 0);
  const std::int64_t kernel_h = image[0] / height, kernel_w = image[1] / width;
  return append(make_avg_pool2d({kernel_h, kernel_w, kernel_h, kernel_w}), {x});
}

Value NetworkBuilder::global_avg_pool(Value x) {
  const Shape& image = shape(x);
  if (image.elements() == image[-1]) return x;
  return append(make_global_avg_pool(), {x});
}

Value NetworkBuilder::relu(Value x) {
  return append(make_activation(Activation::relu), {x});
}

Value NetworkBuilder::add(Value a, Value b) {
  return append(make_add(), {a, b});
}

Value NetworkBuilder::concat(const std::vector<Value>& parts) {
  return append(make_concat(), parts);
}

std::pair<Value, Value> NetworkBuilder::split(Value x, std::int64_t first) {
  const std::vector<Value> parts = network_->body.add(make_split(first), {x});
  return {parts[0], parts[1]};
}

Value NetworkBuilder::add_concat(Value a, Value b, std::int64_t shared) {
  return append(make_add_concat(shared), {a, b});
}

Value NetworkBuilder::shuffle(Value x, std::int64_t groups) {
  return append(make_channel_shuffle(groups), {x});
}

Value NetworkBuilder::dropout(Value x, double probability) {
  return append(make_dropout(dropouts_++, probability), {x});
}

Value NetworkBuilder::channel_dropout(Value x, double probability) {
  return append(make_channel_dropout(dropouts_++, probability), {x});
}

Value NetworkBuilder::flatten(Value x) {
  return append(make_flatten(), {x});
}

}  // namespace motley
