#include "kernels/operation_checks.h"

#include <algorithm>
#include <cmath>

#include "kernels/checks.h"

namespace motley {
namespace {

// Of an operand that may be left out.
void check_optional(const char* operation, const char* argument, const ConstView& view, DType dtype,
                    const Shape& shape) {
  if (!view.empty()) check_view(operation, argument, view, dtype, shape);
}

ConvolutionSizes convolution_sizes(const char* operation, const Conv2d& conv, const NamedView& x,
                                   const NamedView& y, const NamedView& weight, DType weight_type,
                                   const NamedView& bias) {
  const DType type = x.view.dtype;
  check_rank(operation, x.name, x.view, type, 4);
  check_rank(operation, y.name, y.view, type, 4);
  const Shape &in = x.view.shape, &out = y.view.shape;
  ConvolutionSizes s{
      .conv = conv, .type = type, .n = in[0], .h = in[1], .w = in[2], .in = in[3], .out = out[3]};
  const bool sound = conv.kernel_h > 0 && conv.kernel_w > 0 && conv.stride_h > 0 && conv.stride_w > 0 &&
                     conv.pad_h >= 0 && conv.pad_w >= 0 && conv.groups > 0 && s.in > 0 && s.out > 0 &&
                     s.in % conv.groups == 0 && s.out % conv.groups == 0 &&
                     s.h + 2 * conv.pad_h >= conv.kernel_h && s.w + 2 * conv.pad_w >= conv.kernel_w;
  if (!sound) {
    fail(ExitCode::internal,
         "{}: a {}x{} kernel, stride {}x{}, padding {}x{}, {} groups does not fit {} {}, {} {}", operation,
         conv.kernel_h, conv.kernel_w, conv.stride_h, conv.stride_w, conv.pad_h, conv.pad_w, conv.groups,
         x.name, in.to_string(), y.name, out.to_string());
  }
  s.out_h = (s.h + 2 * conv.pad_h - conv.kernel_h) / conv.stride_h + 1;
  s.out_w = (s.w + 2 * conv.pad_w - conv.kernel_w) / conv.stride_w + 1;
  check_view(operation, y.name, y.view, type, Shape{s.n, s.out_h, s.out_w, s.out});
  check_view(operation, weight.name, weight.view, weight_type, s.weight());
  check_optional(operation, bias.name, bias.view, DType::f32, Shape{s.out});
  return s;
}

PoolingSizes pooling_sizes(const char* operation, const Pool2d& pool, bool small_enough, const NamedView& x,
                           const NamedView& y) {
  check_rank(operation, x.name, x.view, x.view.dtype, 4);
  const Shape& in = x.view.shape;
  PoolingSizes s{.n = in[0], .h = in[1], .w = in[2], .c = in[3]};
  // Padding of at most half a window, as in PyTorch: no window lies in the padding alone.
  const bool sound = pool.kernel_h > 0 && pool.kernel_w > 0 && small_enough && pool.stride_h > 0 &&
                     pool.stride_w > 0 && pool.pad_h >= 0 && pool.pad_w >= 0 &&
                     pool.pad_h <= pool.kernel_h / 2 && pool.pad_w <= pool.kernel_w / 2 &&
                     s.h + 2 * pool.pad_h >= pool.kernel_h && s.w + 2 * pool.pad_w >= pool.kernel_w;
  if (!sound) {
    fail(ExitCode::internal, "{}: a {}x{} window, stride {}x{}, padding {}x{} does not fit {} {}", operation,
         pool.kernel_h, pool.kernel_w, pool.stride_h, pool.stride_w, pool.pad_h, pool.pad_w, x.name,
         in.to_string());
  }
  s.out_h = (s.h + 2 * pool.pad_h - pool.kernel_h) / pool.stride_h + 1;
  s.out_w = (s.w + 2 * pool.pad_w - pool.kernel_w) / pool.stride_w + 1;
  check_view(operation, y.name, y.view, x.view.dtype, Shape{s.n, s.out_h, s.out_w, s.c});
  return s;
}

ImageSizes image_sizes(const char* operation, const NamedView& x) {
  check_rank(operation, x.name, x.view, x.view.dtype, 4);
  return {x.view.shape[0], x.view.shape[1] * x.view.shape[2], x.view.shape[3]};
}

LinearSizes linear_sizes(const char* operation, const NamedView& x, const NamedView& y,
                         const NamedView& weight) {
  check_rank(operation, x.name, x.view, x.view.dtype, 2);
  check_rank(operation, weight.name, weight.view, weight.view.dtype, 2);
  const LinearSizes s{x.view.shape[0], x.view.shape[1], weight.view.shape[0]};
  check_view(operation, weight.name, weight.view, weight.view.dtype, Shape{s.out, s.in});
  check_view(operation, y.name, y.view, y.view.dtype, Shape{s.n, s.out});
  return s;
}

LayerNormSizes layer_norm_sizes(const char* operation, const NamedView& x) {
  check_rank(operation, x.name, x.view, x.view.dtype, 3);
  return {x.view.shape[0], x.view.shape[1], x.view.shape[2]};
}

BatchNormSizes batch_norm_sizes(const char* operation, const ConstView& x) {
  check_dtype(operation, "x", x, x.dtype);
  const int rank = x.shape.rank();
  if (rank != 2 && rank != 4) {
    fail(ExitCode::internal, "{}: x has the shape {}, but [n, h, w, c] or [n, c] belongs there", operation,
         x.shape.to_string());
  }
  const BatchNormSizes s{x.shape.elements() / std::max<std::int64_t>(x.shape[-1], 1), x.shape[-1]};
  MOTLEY_CHECK(s.c > 0);
  return s;
}

BatchNormSizes batch_norm_sizes(const char* operation, const BatchNormViews& views) {
  const BatchNormSizes s = batch_norm_sizes(operation, views.x);
  check_view(operation, "mean", views.mean, DType::f32, Shape{s.c});
  check_view(operation, "rstd", views.rstd, DType::f32, Shape{s.c});
  check_view(operation, "gamma", views.gamma, DType::f32, Shape{s.c});
  check_view(operation, "beta", views.beta, DType::f32, Shape{s.c});
  const Activation a = views.activation;
  if (a != Activation::none && a != Activation::relu && a != Activation::swish) {
    fail(ExitCode::internal, "{}: the activation is number {}, but none, relu or swish belongs there",
         operation, static_cast<int>(a));
  }
  return s;
}

BatchNormSizes batch_norm_gradient_sizes(const char* operation, const BatchNormViews& views,
                                         const ConstView& y, const ConstView& dy, const ConstView& sums) {
  const BatchNormSizes s = batch_norm_sizes(operation, views);
  if (!y.empty() && views.activation != Activation::relu) {
    fail(ExitCode::internal, "{}: y was given, but only relu is derived from it", operation);
  }
  check_optional(operation, "y", y, views.x.dtype, views.x.shape);
  check_view(operation, "dy", dy, views.x.dtype, views.x.shape);
  check_view(operation, "sums", sums, DType::f64, Shape{2, s.c});
  return s;
}

// Arenas that are as long as the parameters.
void check_arenas(const char* operation, const ConstView& param, std::initializer_list<NamedView> others) {
  check_dtype(operation, "param", param, DType::f32);
  for (const NamedView& other : others)
    check_length(operation, other.name, other.view, DType::f32, param.elements());
}

void check_scale(const char* operation, const ConstView& scale) {
  check_dtype(operation, "scale", scale, DType::f32);
  if (scale.elements() < 1) fail(ExitCode::internal, "{}: scale is empty", operation);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void check_normalize_images(const char* operation, const ConstView& x, std::span<const float> mean,
                            std::span<const float> deviation, const ConstView& y) {
  check_rank(operation, "x", x, DType::u8, 4);
  check_view(operation, "y", y, y.dtype, x.shape);
  const std::int64_t channels = x.shape[3];
  if (static_cast<std::int64_t>(mean.size()) != channels ||
      static_cast<std::int64_t>(deviation.size()) != channels) {
    fail(ExitCode::internal, "{}: {} means and {} deviations were given for the {} channels of {}", operation,
         mean.size(), deviation.size(), channels, x.shape.to_string());
  }
}

ConvolutionSizes check_conv2d(const char* operation, const Conv2d& conv, const NamedView& x,
                              const NamedView& y, const NamedView& weight, const NamedView& bias) {
  return convolution_sizes(operation, conv, x, y, weight, x.view.dtype, bias);
}

ConvolutionSizes check_conv2d_backward_weights(const char* operation, const Conv2d& conv, const ConstView& x,
                                               const ConstView& dy, const ConstView& dweight,
                                               const ConstView& dbias) {
  return convolution_sizes(operation, conv, {"x", x}, {"dy", dy}, {"dweight", dweight}, DType::f32,
                           {"dbias", dbias});
}

PoolingSizes check_max_pool2d(const char* operation, const Pool2d& pool, const NamedView& x,
                              const NamedView& y, const ConstView& argmax) {
  const PoolingSizes s = pooling_sizes(operation, pool, pool.kernel_h * pool.kernel_w <= 256, x, y);
  check_view(operation, "argmax", argmax, DType::u8, y.view.shape);
  return s;
}

PoolingSizes check_avg_pool2d(const char* operation, const Pool2d& pool, const NamedView& x,
                              const NamedView& y) {
  return pooling_sizes(operation, pool, true, x, y);
}

ImageSizes check_copy_channels(const char* operation, const ConstView& x, std::int64_t from,
                               const ConstView& y, std::int64_t to, std::int64_t count) {
  const ImageSizes s = image_sizes(operation, {"y", y});
  check_rank(operation, "x", x, y.dtype, 4);
  const std::int64_t available = x.shape[3];
  check_view(operation, "x", x, y.dtype, Shape{y.shape[0], y.shape[1], y.shape[2], available});
  if (count < 0 || from < 0 || to < 0 || count > available - from || count > s.c - to) {
    fail(ExitCode::internal, "{}: {} channels from {} on of x {} do not fit at {} of y {}", operation, count,
         from, x.shape.to_string(), to, y.shape.to_string());
  }
  return s;
}

ImageSizes check_channel_shuffle(const char* operation, std::int64_t groups, const ConstView& x,
                                 const ConstView& y) {
  const ImageSizes s = image_sizes(operation, {"x", x});
  check_view(operation, "y", y, x.dtype, x.shape);
  if (groups < 1 || s.c % groups != 0) {
    fail(ExitCode::internal, "{}: the channels of x {} do not divide into {} groups", operation,
         x.shape.to_string(), groups);
  }
  return s;
}

ImageSizes check_scale_channels_forward(const char* operation, const ConstView& x, const ConstView& s,
                                        const ConstView& y) {
  const ImageSizes sizes = image_sizes(operation, {"x", x});
  check_view(operation, "s", s, x.dtype, Shape{sizes.n, sizes.c});
  check_view(operation, "y", y, x.dtype, x.shape);
  return sizes;
}

ImageSizes check_scale_channels_backward(const char* operation, const ConstView& x, const ConstView& s,
                                         const ConstView& dy, const ConstView& dx, const ConstView& ds) {
  const ImageSizes sizes = image_sizes(operation, {"x", x});
  check_view(operation, "s", s, x.dtype, Shape{sizes.n, sizes.c});
  check_view(operation, "dy", dy, x.dtype, x.shape);
  check_view(operation, "dx", dx, x.dtype, x.shape);
  check_view(operation, "ds", ds, x.dtype, s.shape);
  return sizes;
}

BatchNormSizes check_batch_norm_sums(const char* operation, const ConstView& x, const ConstView& sums) {
  const BatchNormSizes s = batch_norm_sizes(operation, x);
  check_view(operation, "sums", sums, DType::f64, Shape{2, s.c});
  return s;
}

std::int64_t check_batch_norm_statistics(const char* operation, const ConstView& sums, double count,
                                         const ConstView& mean, const ConstView& rstd,
                                         const ConstView& running_mean, const ConstView& running_var) {
  check_rank(operation, "mean", mean, DType::f32, 1);
  const Shape channels = mean.shape;
  check_view(operation, "sums", sums, DType::f64, channels.with_batch(2));
  check_view(operation, "rstd", rstd, DType::f32, channels);
  check_view(operation, "running_mean", running_mean, DType::f32, channels);
  check_view(operation, "running_var", running_var, DType::f32, channels);
  if (!(count >= 2)) {
    fail(ExitCode::internal, "{}: the count is {}, but a variance needs at least 2 values of a channel",
         operation, count);
  }
  return channels[0];
}

std::int64_t check_batch_norm_running(const char* operation, const ConstView& running_var,
                                      const ConstView& rstd) {
  check_rank(operation, "running_var", running_var, DType::f32, 1);
  check_view(operation, "rstd", rstd, DType::f32, running_var.shape);
  return rstd.shape[0];
}

BatchNormSizes check_batch_norm_forward(const char* operation, const BatchNormViews& views,
                                        const ConstView& residual, const ConstView& y) {
  const BatchNormSizes s = batch_norm_sizes(operation, views);
  check_optional(operation, "residual", residual, views.x.dtype, views.x.shape);
  check_view(operation, "y", y, views.x.dtype, views.x.shape);
  if (!residual.empty() && views.activation == Activation::swish) {
    fail(ExitCode::internal, "{}: there is a residual, but swish is not derived from y", operation);
  }
  return s;
}

BatchNormSizes check_batch_norm_backward_sums(const char* operation, const BatchNormViews& views,
                                              const ConstView& y, const ConstView& dy, const ConstView& sums,
                                              const ConstView& dgamma, const ConstView& dbeta) {
  const BatchNormSizes s = batch_norm_gradient_sizes(operation, views, y, dy, sums);
  check_view(operation, "dgamma", dgamma, DType::f32, Shape{s.c});
  check_view(operation, "dbeta", dbeta, DType::f32, Shape{s.c});
  return s;
}

BatchNormSizes check_batch_norm_backward(const char* operation, const BatchNormViews& views,
                                         const ConstView& y, const ConstView& dy, const ConstView& sums,
                                         double count, const ConstView& dx, const ConstView& dresidual) {
  const BatchNormSizes s = batch_norm_gradient_sizes(operation, views, y, dy, sums);
  check_view(operation, "dx", dx, views.x.dtype, views.x.shape);
  check_optional(operation, "dresidual", dresidual, views.x.dtype, views.x.shape);
  if (dx.data == dresidual.data && s.rows > 0) {
    fail(ExitCode::internal, "{}: dx and dresidual are the same memory", operation);
  }
  MOTLEY_CHECK(count > 0);
  return s;
}

void check_relu_forward(const char* operation, const ConstView& x, const ConstView& y) {
  check_dtype(operation, "x", x, x.dtype);
  check_view(operation, "y", y, x.dtype, x.shape);
}

void check_relu_backward(const char* operation, const ConstView& y, const ConstView& dy,
                         const ConstView& dx) {
  check_dtype(operation, "y", y, y.dtype);
  check_view(operation, "dy", dy, y.dtype, y.shape);
  check_view(operation, "dx", dx, y.dtype, y.shape);
}

void check_activation_forward(const char* operation, const ConstView& x, const ConstView& y) {
  check_dtype(operation, "x", x, x.dtype);
  check_view(operation, "y", y, x.dtype, x.shape);
}

void check_add(const char* operation, const ConstView& a, const ConstView& b, Activation activation,
               const ConstView& y) {
  check_dtype(operation, "a", a, a.dtype);
  check_view(operation, "b", b, a.dtype, a.shape);
  check_view(operation, "y", y, a.dtype, a.shape);
  MOTLEY_CHECK(activation == Activation::none || activation == Activation::relu);
}

void check_activation_backward(const char* operation, const ConstView& preactivation, const ConstView& dy,
                               const ConstView& dx) {
  check_dtype(operation, "preactivation", preactivation, preactivation.dtype);
  check_view(operation, "dy", dy, preactivation.dtype, preactivation.shape);
  check_view(operation, "dx", dx, preactivation.dtype, preactivation.shape);
}

void check_dropout_channels(const char* operation, const ConstView& x, const ConstView& y) {
  check_rank(operation, "x", x, x.dtype, 4);
  check_view(operation, "y", y, x.dtype, x.shape);
}

void check_nhwc_to_nchw(const char* operation, const ConstView& x, const ConstView& y) {
  check_rank(operation, "x", x, x.dtype, 4);
  const Shape& s = x.shape;
  check_view(operation, "y", y, x.dtype, Shape{s[0], s[3], s[1], s[2]});
}

void check_nchw_to_nhwc(const char* operation, const ConstView& x, const ConstView& y) {
  check_rank(operation, "x", x, x.dtype, 4);
  const Shape& s = x.shape;
  check_view(operation, "y", y, x.dtype, Shape{s[0], s[2], s[3], s[1]});
}

LinearSizes check_linear_forward(const char* operation, const ConstView& x, const ConstView& weight,
                                 const ConstView& bias, const ConstView& y, const ConstView& preactivation) {
  const LinearSizes s = linear_sizes(operation, {"x", x}, {"y", y}, {"weight", weight});
  check_dtype(operation, "weight", weight, x.dtype);
  if (y.dtype != DType::f32) check_dtype(operation, "y", y, x.dtype);
  check_optional(operation, "bias", bias, DType::f32, Shape{s.out});
  check_optional(operation, "preactivation", preactivation, y.dtype, y.shape);
  return s;
}

LinearSizes check_linear_backward_data(const char* operation, const ConstView& dy, const ConstView& weight,
                                       const ConstView& dx) {
  const LinearSizes s = linear_sizes(operation, {"dx", dx}, {"dy", dy}, {"weight", weight});
  check_dtype(operation, "weight", weight, dy.dtype);
  check_dtype(operation, "dx", dx, dy.dtype);
  return s;
}

LinearSizes check_linear_backward_weights(const char* operation, const ConstView& x, const ConstView& dy,
                                          const ConstView& dweight, const ConstView& dbias) {
  const LinearSizes s = linear_sizes(operation, {"x", x}, {"dy", dy}, {"dweight", dweight});
  check_dtype(operation, "dy", dy, x.dtype);
  check_dtype(operation, "dweight", dweight, DType::f32);
  check_optional(operation, "dbias", dbias, DType::f32, Shape{s.out});
  return s;
}

EmbeddingSizes check_embedding_forward(const char* operation, const ConstView& word,
                                       const ConstView& position, const ConstView& type, const ConstView& ids,
                                       const ConstView& types, const ConstView& y) {
  check_rank(operation, "word", word, DType::f32, 2);
  check_rank(operation, "position", position, DType::f32, 2);
  check_rank(operation, "type", type, DType::f32, 2);
  check_rank(operation, "ids", ids, DType::i32, 2);
  check_view(operation, "types", types, DType::i32, ids.shape);
  const EmbeddingSizes s{ids.shape[0], ids.shape[1], word.shape[1]};
  check_view(operation, "position", position, DType::f32, Shape{position.shape[0], s.width});
  check_view(operation, "type", type, DType::f32, Shape{type.shape[0], s.width});
  check_view(operation, "y", y, y.dtype, Shape{s.n, s.seq, s.width});
  if (s.seq > position.shape[0]) {
    fail(ExitCode::internal, "{}: sequences have {} places, but the table of positions {}", operation, s.seq,
         position.shape[0]);
  }
  return s;
}

void check_gather_rows(const char* operation, const ConstView& x, const ConstView& index,
                       const ConstView& y) {
  check_rank(operation, "x", x, x.dtype, 2);
  check_rank(operation, "index", index, DType::i32, 1);
  check_view(operation, "y", y, x.dtype, Shape{index.shape[0], x.shape[1]});
}

void check_scatter_add_rows(const char* operation, const RowGroups& groups, const ConstView& dy,
                            const ConstView& x) {
  check_rank(operation, "dy", dy, dy.dtype, 2);
  check_rank(operation, "x", x, x.dtype, 2);
  check_rank(operation, "groups.rows", groups.rows, DType::i32, 1);
  check_view(operation, "groups.starts", groups.starts, DType::i32, Shape{groups.rows.shape[0] + 1});
  check_rank(operation, "groups.sources", groups.sources, DType::i32, 1);
  if (dy.shape[0] < groups.sources.shape[0]) {  // there may be more: indices can be skipped
    fail(ExitCode::internal, "{}: dy has {} rows, but there are {} sources", operation, dy.shape[0],
         groups.sources.shape[0]);
  }
  check_view(operation, "x", x, x.dtype, Shape{x.shape[0], dy.shape[1]});
  if (x.dtype != DType::f32) check_dtype(operation, "x", x, dy.dtype);
}

LayerNormSizes check_add_layer_norm_forward(const char* operation, const ConstView& x,
                                            const ConstView& residual, const ConstView& gamma,
                                            const ConstView& beta, const ConstView& sum, const ConstView& y,
                                            const ConstView& mean, const ConstView& rstd) {
  const LayerNormSizes s = layer_norm_sizes(operation, {"x", x});
  check_optional(operation, "residual", residual, x.dtype, x.shape);
  check_view(operation, "gamma", gamma, DType::f32, Shape{s.width});
  check_view(operation, "beta", beta, DType::f32, Shape{s.width});
  check_view(operation, "sum", sum, x.dtype, x.shape);
  check_view(operation, "y", y, x.dtype, x.shape);
  check_view(operation, "mean", mean, DType::f32, Shape{s.n, s.seq});
  check_view(operation, "rstd", rstd, DType::f32, Shape{s.n, s.seq});
  return s;
}

LayerNormSizes check_add_layer_norm_backward(const char* operation, const ConstView& dy, const ConstView& sum,
                                             const ConstView& mean, const ConstView& rstd,
                                             const ConstView& gamma, const ConstView& dsum,
                                             const ConstView& dx, const ConstView& dgamma,
                                             const ConstView& dbeta) {
  const LayerNormSizes s = layer_norm_sizes(operation, {"dy", dy});
  check_view(operation, "sum", sum, dy.dtype, dy.shape);
  check_view(operation, "mean", mean, DType::f32, Shape{s.n, s.seq});
  check_view(operation, "rstd", rstd, DType::f32, Shape{s.n, s.seq});
  check_view(operation, "gamma", gamma, DType::f32, Shape{s.width});
  check_view(operation, "dsum", dsum, dy.dtype, dy.shape);
  check_optional(operation, "dx", dx, dy.dtype, dy.shape);
  check_view(operation, "dgamma", dgamma, DType::f32, Shape{s.width});
  check_view(operation, "dbeta", dbeta, DType::f32, Shape{s.width});
  return s;
}

float AttentionSizes::scale() const {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
}

AttentionSizes check_attention_forward(const char* operation, const Attention& attention,
                                       const ConstView& qkv, const ConstView& key_mask,
                                       const ConstView& context, const ConstView& log_sum_exp) {
  check_rank(operation, "qkv", qkv, qkv.dtype, 5);
  const AttentionSizes s{qkv.shape[0], qkv.shape[1], attention.heads, qkv.shape[4]};
  check_view(operation, "qkv", qkv, qkv.dtype, Shape{s.n, s.seq, 3, s.heads, s.dim});
  check_view(operation, "key_mask", key_mask, DType::u8, Shape{s.n, s.seq});
  check_view(operation, "context", context, qkv.dtype, Shape{s.n, s.seq, s.heads * s.dim});
  check_view(operation, "log_sum_exp", log_sum_exp, DType::f32, Shape{s.n, s.heads, s.seq});
  return s;
}

AttentionSizes check_attention_backward(const char* operation, const Attention& attention,
                                        const ConstView& qkv, const ConstView& key_mask,
                                        const ConstView& context, const ConstView& log_sum_exp,
                                        const ConstView& dcontext, const ConstView& dqkv) {
  const AttentionSizes s = check_attention_forward(operation, attention, qkv, key_mask, context, log_sum_exp);
  check_view(operation, "dcontext", dcontext, qkv.dtype, context.shape);
  check_view(operation, "dqkv", dqkv, qkv.dtype, qkv.shape);
  return s;
}

void check_softmax_nll(const char* operation, const ConstView& logits, const ConstView& labels, int top_k,
                       const ConstView& sums, const ConstView& dlogits) {
  check_rank(operation, "logits", logits, DType::f32, 2);
  check_view(operation, "labels", labels, DType::i32, Shape{logits.shape[0]});
  check_view(operation, "sums", sums, DType::f64, Shape{4});
  check_optional(operation, "dlogits", dlogits, dlogits.dtype, logits.shape);
  MOTLEY_CHECK(logits.shape[1] > 0 && top_k >= 1);
}

void check_gradient_scale(const char* operation, const ConstView& sum_squares, const ConstView& count,
                          const ConstView& out) {
  check_length(operation, "sum_squares", sum_squares, DType::f64, 1);
  check_length(operation, "count", count, DType::f64, 1);
  check_length(operation, "out", out, DType::f32, 2);
}

void check_sgd_step(const char* operation, const SgdOptions& options, const ConstView& grad,
                    const ConstView& scale, const ConstView& param, const ConstView& momentum) {
  const bool with_momentum = options.momentum != 0;
  check_arenas(operation, param, {{"grad", grad}});
  if (with_momentum) check_arenas(operation, param, {{"momentum", momentum}});
  if (options.nesterov && (!with_momentum || options.dampening != 0))
    fail(ExitCode::internal, "{}: Nesterov needs a momentum and no dampening", operation);
  check_scale(operation, scale);
}

void check_adam_step(const char* operation, const AdamOptions& options, const ConstView& grad,
                     const ConstView& scale, const ConstView& param, const ConstView& exp_avg,
                     const ConstView& exp_avg_sq) {
  check_arenas(operation, param, {{"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}});
  check_scale(operation, scale);
  MOTLEY_CHECK(options.step >= 1);
}

void check_lamb_step(const char* operation, const LambOptions& options, std::span<const Segment> segments,
                     const ConstView& grad, const ConstView& scale, const ConstView& param,
                     const ConstView& exp_avg, const ConstView& exp_avg_sq) {
  check_arenas(operation, param, {{"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}});
  check_scale(operation, scale);
  MOTLEY_CHECK(options.step >= 1);
  std::size_t end = 0;
  const auto elements = static_cast<std::size_t>(param.elements());
  for (const Segment& segment : segments) {
    if (segment.offset < end || segment.offset > elements || segment.elements > elements - segment.offset) {
      fail(ExitCode::internal, "{}: a segment of {} elements at {} does not fit behind {} in {} elements",
           operation, segment.elements, segment.offset, end, elements);
    }
    end = segment.offset + segment.elements;
  }
}

void check_adadelta_step(const char* operation, const ConstView& grad, const ConstView& scale,
                         const ConstView& param, const ConstView& square_avg, const ConstView& acc_delta) {
  check_arenas(operation, param, {{"grad", grad}, {"square_avg", square_avg}, {"acc_delta", acc_delta}});
  check_scale(operation, scale);
}

}  // namespace motley
