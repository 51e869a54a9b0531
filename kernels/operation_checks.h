// The checks of the views that an operation is given, and what sizes follow from them: the same on every
// device. What an operation asks for is said in kernels/backend.h; how a check fails, in kernels/checks.h.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace motley {

void check_normalize_images(const char* operation, const ConstView& x, std::span<const float> mean,
                            std::span<const float> deviation, const ConstView& y);

// x [n, h, w, in], y [n, out_h, out_w, out], weight [out, in / groups, kernel_h, kernel_w].
struct ConvolutionSizes {
  Conv2d conv;
  DType type = DType::f32;  // of x and y
  std::int64_t n = 0, h = 0, w = 0, in = 0, out_h = 0, out_w = 0, out = 0;

  Shape weight() const { return {out, in / conv.groups, conv.kernel_h, conv.kernel_w}; }
};
// Some arguments have other names, as dx and dy, from one operation of a family to another.
struct NamedView {
  const char* name;
  ConstView view;
};
// Without a bias its view is empty.
ConvolutionSizes check_conv2d(const char* operation, const Conv2d& conv, const NamedView& x,
                              const NamedView& y, const NamedView& weight, const NamedView& bias = {});
// The same with float32 gradients of weight and bias.
ConvolutionSizes check_conv2d_backward_weights(const char* operation, const Conv2d& conv, const ConstView& x,
                                               const ConstView& dy, const ConstView& dweight,
                                               const ConstView& dbias);

// x [n, h, w, c], y [n, out_h, out_w, c].
struct PoolingSizes {
  std::int64_t n = 0, h = 0, w = 0, c = 0, out_h = 0, out_w = 0;
};
PoolingSizes check_max_pool2d(const char* operation, const Pool2d& pool, const NamedView& x,
                              const NamedView& y, const ConstView& argmax);
PoolingSizes check_avg_pool2d(const char* operation, const Pool2d& pool, const NamedView& x,
                              const NamedView& y);

// x [n, h, w, c].
struct ImageSizes {
  std::int64_t n = 0, pixels = 0, c = 0;
};
// The sizes of y.
ImageSizes check_copy_channels(const char* operation, const ConstView& x, std::int64_t from,
                               const ConstView& y, std::int64_t to, std::int64_t count);
ImageSizes check_channel_shuffle(const char* operation, std::int64_t groups, const ConstView& x,
                                 const ConstView& y);
ImageSizes check_scale_channels_forward(const char* operation, const ConstView& x, const ConstView& s,
                                        const ConstView& y);
ImageSizes check_scale_channels_backward(const char* operation, const ConstView& x, const ConstView& s,
                                         const ConstView& dy, const ConstView& dx, const ConstView& ds);

void check_activation_forward(const char* operation, const ConstView& x, const ConstView& y);
void check_add(const char* operation, const ConstView& a, const ConstView& b, Activation activation,
               const ConstView& y);
// x [n, h, w, c] or [n, c]: rows of c channels.
struct BatchNormSizes {
  std::int64_t rows = 0, c = 0;
};
BatchNormSizes check_batch_norm_sums(const char* operation, const ConstView& x, const ConstView& sums);
// The number of channels.
std::int64_t check_batch_norm_statistics(const char* operation, const ConstView& sums, double count,
                                         const ConstView& mean, const ConstView& rstd,
                                         const ConstView& running_mean, const ConstView& running_var);
std::int64_t check_batch_norm_running(const char* operation, const ConstView& running_var,
                                      const ConstView& rstd);
// What a batch normalisation is applied with.
struct BatchNormViews {
  Activation activation;
  ConstView x, mean, rstd, gamma, beta;
};
BatchNormSizes check_batch_norm_forward(const char* operation, const BatchNormViews& views,
                                        const ConstView& residual, const ConstView& y);
BatchNormSizes check_batch_norm_backward_sums(const char* operation, const BatchNormViews& views,
                                              const ConstView& y, const ConstView& dy, const ConstView& sums,
                                              const ConstView& dgamma, const ConstView& dbeta);
BatchNormSizes check_batch_norm_backward(const char* operation, const BatchNormViews& views,
                                         const ConstView& y, const ConstView& dy, const ConstView& sums,
                                         double count, const ConstView& dx, const ConstView& dresidual);

void check_relu_forward(const char* operation, const ConstView& x, const ConstView& y);
void check_relu_backward(const char* operation, const ConstView& y, const ConstView& dy, const ConstView& dx);
void check_activation_backward(const char* operation, const ConstView& preactivation, const ConstView& dy,
                               const ConstView& dx);
void check_dropout_channels(const char* operation, const ConstView& x, const ConstView& y);
void check_nhwc_to_nchw(const char* operation, const ConstView& x, const ConstView& y);
void check_nchw_to_nhwc(const char* operation, const ConstView& x, const ConstView& y);

// x [n, in], y [n, out], weight [out, in].
struct LinearSizes {
  std::int64_t n = 0, in = 0, out = 0;
};
LinearSizes check_linear_forward(const char* operation, const ConstView& x, const ConstView& weight,
                                 const ConstView& bias, const ConstView& y, const ConstView& preactivation);
LinearSizes check_linear_backward_data(const char* operation, const ConstView& dy, const ConstView& weight,
                                       const ConstView& dx);
LinearSizes check_linear_backward_weights(const char* operation, const ConstView& x, const ConstView& dy,
                                          const ConstView& dweight, const ConstView& dbias);

// y [n, seq, width] of tables [rows, width].
struct EmbeddingSizes {
  std::int64_t n = 0, seq = 0, width = 0;
};
EmbeddingSizes check_embedding_forward(const char* operation, const ConstView& word,
                                       const ConstView& position, const ConstView& type, const ConstView& ids,
                                       const ConstView& types, const ConstView& y);
void check_gather_rows(const char* operation, const ConstView& x, const ConstView& index, const ConstView& y);
void check_scatter_add_rows(const char* operation, const RowGroups& groups, const ConstView& dy,
                            const ConstView& x);

// x [n, seq, width], normalised over the width.
struct LayerNormSizes {
  std::int64_t n = 0, seq = 0, width = 0;

  std::int64_t rows() const { return n * seq; }
};
LayerNormSizes check_add_layer_norm_forward(const char* operation, const ConstView& x,
                                            const ConstView& residual, const ConstView& gamma,
                                            const ConstView& beta, const ConstView& sum, const ConstView& y,
                                            const ConstView& mean, const ConstView& rstd);
LayerNormSizes check_add_layer_norm_backward(const char* operation, const ConstView& dy, const ConstView& sum,
                                             const ConstView& mean, const ConstView& rstd,
                                             const ConstView& gamma, const ConstView& dsum,
                                             const ConstView& dx, const ConstView& dgamma,
                                             const ConstView& dbeta);

// qkv [n, seq, 3, heads, dim].
struct AttentionSizes {
  std::int64_t n = 0, seq = 0, heads = 0, dim = 0;

  std::int64_t token() const { return 3 * heads * dim; }  // elements of qkv
  float scale() const;                                    // of scores: 1 / sqrt(dim)
};
AttentionSizes check_attention_forward(const char* operation, const Attention& attention,
                                       const ConstView& qkv, const ConstView& key_mask,
                                       const ConstView& context, const ConstView& log_sum_exp);
AttentionSizes check_attention_backward(const char* operation, const Attention& attention,
                                        const ConstView& qkv, const ConstView& key_mask,
                                        const ConstView& context, const ConstView& log_sum_exp,
                                        const ConstView& dcontext, const ConstView& dqkv);

void check_softmax_nll(const char* operation, const ConstView& logits, const ConstView& labels, int top_k,
                       const ConstView& sums, const ConstView& dlogits);

void check_gradient_scale(const char* operation, const ConstView& sum_squares, const ConstView& count,
                          const ConstView& out);
void check_sgd_step(const char* operation, const SgdOptions& options, const ConstView& grad,
                    const ConstView& scale, const ConstView& param, const ConstView& momentum);
void check_adam_step(const char* operation, const AdamOptions& options, const ConstView& grad,
                     const ConstView& scale, const ConstView& param, const ConstView& exp_avg,
                     const ConstView& exp_avg_sq);
void check_lamb_step(const char* operation, const LambOptions& options, std::span<const Segment> segments,
                     const ConstView& grad, const ConstView& scale, const ConstView& param,
                     const ConstView& exp_avg, const ConstView& exp_avg_sq);
void check_adadelta_step(const char* operation, const ConstView& grad, const ConstView& scale,
                         const ConstView& param, const ConstView& square_avg, const ConstView& acc_delta);

}  // namespace motley
