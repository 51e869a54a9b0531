// The list of operations that the networks need, and the device that runs them. One Backend object per rank
// owns the device, its streams, its scratch memory and its memory limit.
//
// Conventions, for every operation and every device:
//  * Operations take raw views (pointer, dtype, shape), check them, and never allocate device memory for
//    results. Wrong shapes or dtypes are a bug in the caller: Error(internal), with the operation's name.
//  * Views point to memory of this backend's device (Buffer), unless a parameter is called host_*.
//  * Operations are enqueued in order. Results are ready for the host after synchronize().
//  * Activations are channels-last: [n, height, width, channels]. Weights have PyTorch's shapes: convolution
//    [out, in / groups, kernel_h, kernel_w], linear [out, in].
//  * "T" is float32, bfloat16 or, on GPUs, float16, the same for all views of one call that are marked with it:
//    the type in which activations are held and multiplied. Sums are formed in float32 or wider; biases, statistics and
//    gradients of parameters are float32. Views without a mark are float32.
//  * Reductions have a fixed order: the same call on the same device gives the same bits twice, so there are
//    no floating-point atomics.
//  * "accumulate" adds to the output instead of overwriting it; gradients of parameters are summed over
//    micro-batches that way (law 2).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/error.h"
#include "core/philox.h"
#include "core/view.h"

namespace motley {

struct DeviceInfo {
  std::string kind;          // "cpu" or "cuda"
  std::string name;          // the processor's or card's own name
  int threads = 1;           // OpenMP threads (cpu)
  bool bf16_native = false;  // multiplies bfloat16 faster than float32; otherwise it saves memory only
  std::size_t memory_limit_bytes = 0;  // what allocate() may hand out in total, as it is now
};

// Applied to the output of conv2d_forward and add (none and relu), of linear_forward, and by
// activation_forward. NaN stays NaN: a run that diverges shows it. gelu is x Phi(x) by the error function, as
// Hugging Face's "gelu"; swish is x sigmoid(x).
enum class Activation : std::uint8_t { none, relu, gelu, swish, tanh, sigmoid };

struct Conv2d {
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_h = 0, pad_w = 0;
  std::int64_t groups = 1;
};

struct Pool2d {
  std::int64_t kernel_h = 2, kernel_w = 2;
  std::int64_t stride_h = 2, stride_w = 2;
  std::int64_t pad_h = 0, pad_w = 0;
};

// Which samples a call works on: row i of its views is slot first_slot + i of the global batch.
struct DropoutMask {
  RandomKey key;
  std::uint32_t first_slot = 0;
  double probability = 0;  // 0 <= probability < 1; kept values are scaled by 1 / (1 - probability)
};

// Multi-head attention over sequences. Element (head * seq + query) * seq + key of a sample's probabilities
// is dropped by `dropout`.
struct Attention {
  std::int64_t heads = 1;
  DropoutMask dropout;
};

// The rows of a table that a list of indices points to, with the places of the list that point to each:
// what a sum over equal indices needs to have a fixed order. Device memory; made from an index list by
// group_rows (kernels/row_groups.h).
struct RowGroups {
  ConstView rows;     // int32 [groups]: distinct rows, ascending
  ConstView starts;   // int32 [groups + 1]: group g is sources[starts[g] .. starts[g + 1]), which is not empty
  ConstView sources;  // int32 [m]: places in the list, ascending within a group
};

// Hyper-parameters in PyTorch's names and with PyTorch's meaning (torch.optim documentation). In double,
// because PyTorch derives 1 - beta and the bias corrections from doubles: with float32 betas 1 - beta2 is
// wrong by 1e-5.
struct SgdOptions {
  double lr = 0, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool first_step = false;  // the momentum buffer starts as the gradient itself, as PyTorch does
};
struct AdamOptions {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  // true: AdamW (weights shrink by lr * weight_decay); false: Adam (decay added to the gradient)
  bool decoupled = false;
  std::int64_t step = 1;  // counts from 1, for the bias correction
};
// LAMB: You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020,
// algorithm 2, with bias correction. The step of a tensor that does not adapt is not scaled by the trust ratio,
// as in the authors' code, which leaves biases and normalisations out.
struct LambOptions {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  std::int64_t step = 1;  // counts from 1
};
// One tensor of a flat arena.
struct Segment {
  std::size_t offset = 0, elements = 0;
  double weight_decay = 0;
  bool adapts = true;  // its step is scaled by its own trust ratio
};
struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
};

// Work that is done over and over, such as the pass of a micro-batch: the same operations each time, on views of the same
// shapes, as a rule.
struct StretchKey {
  std::int64_t samples = 0;
  int place = 0;  // in a step, for whoever names stretches

  auto operator<=>(const StretchKey&) const = default;
};

// Of the work of a stretch an unknown part was done; the device is as it was otherwise, and can do it again.
class StretchLost : public Error {
 public:
  explicit StretchLost(const std::string& sentence) : Error(ExitCode::device, sentence) {}
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual const DeviceInfo& device() const = 0;

  // --- Memory --------------------------------------------------------------------------------------------
  // 64-byte aligned device memory. Throws OutOfMemory when the limit is reached or the device has no more;
  // see Buffer for RAII.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer, std::size_t bytes) noexcept = 0;
  virtual std::size_t allocated_bytes() const = 0;
  // What allocate() may hand out in total from now on. It may be less than is in use: allocate() then fails
  // until enough was released.
  virtual void set_memory_limit(std::size_t bytes) = 0;
  // Operations may take working memory, which counts as allocated and is kept for those that follow. They
  // throw OutOfMemory when there is none, and have then written anything or nothing. This gives back what is
  // kept.
  virtual void release_scratch() = 0;
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;  // synchronizes
  virtual void fill_zero(View x) = 0;
  virtual void synchronize() = 0;

  // --- Repeated work ---------------------------------------------------------------------------------------
  // Does the work, which may be any operations of this backend, in the same order and with the same bits as without
  // this call. A device may hold operations back and put them on as a whole. What `rehearsal` does may be tried out first
  // without being run, but for copies from the host: that is the work without what other ranks see of it. Throws what the
  // work throws, and StretchLost when putting it on as a whole failed, which is not tried again.
  virtual void run_stretch(const StretchKey& /*key*/, const std::function<void()>& work,
                           const std::function<void()>& /*rehearsal*/) {
    work();
  }

  // --- Time ----------------------------------------------------------------------------------------------
  // A point in the order of operations, for seconds_between(), which may be asked after synchronize(): the
  // time from when the device came to `from` until it came to `to`.
  virtual std::int64_t mark() = 0;
  virtual double seconds_between(std::int64_t from, std::int64_t to) = 0;

  // --- Input ---------------------------------------------------------------------------------------------
  // y[n,h,w,c] = (x[n,h,w,c] / 255 - mean[c]) / deviation[c]; x uint8, y T.
  virtual void normalize_images(ConstView x, std::span<const float> host_mean,
                                std::span<const float> host_deviation, View y) = 0;

  // --- Convolution and pooling, channels-last -------------------------------------------------------------
  // y[n,oh,ow,k] = activation(x * weight + bias); x, weight and y T; bias [k] may be empty.
  // o = (i + 2 pad - kernel) / stride + 1.
  virtual void conv2d_forward(const Conv2d& conv, ConstView x, ConstView weight, ConstView bias,
                              Activation activation, View y) = 0;
  // dx = gradient of x from dy (the gradient before the activation: see relu_backward); all T.
  virtual void conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) = 0;
  // dweight and dbias (may be empty) from x and dy, both T. On GPUs the sums of dweight are float32, but of half
  // types each call's are rounded to T before they are stored: cuDNN writes no other type.
  virtual void conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight,
                                       View dbias, bool accumulate) = 0;
  // y = maximum of each window; argmax (uint8, shape of y) = its place in the window, kernel_w * row +
  // column, the first one when several are equal, as PyTorch. Windows of at most 256 elements. x, y, dy and dx T.
  virtual void max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) = 0;
  virtual void max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) = 0;
  // y = mean of each window, where padding counts as zeros (PyTorch's count_include_pad); all T. A window of the
  // whole image is the global average pool.
  virtual void avg_pool2d_forward(const Pool2d& pool, ConstView x, View y) = 0;
  virtual void avg_pool2d_backward(const Pool2d& pool, ConstView dy, View dx) = 0;

  // --- Batch normalisation, channels-last ------------------------------------------------------------------
  // Ioffe, Szegedy, "Batch normalization", 2015, with PyTorch's running statistics. Statistics are split from
  // the normalisation so that sums can be added up over ranks between the two: those of parts of a batch add
  // up to those of the whole, and a part without samples has sums of 0. Tensors are [n, h, w, c] or [n, c], T;
  // statistics are per channel, [c]; "count" is the number of values of a channel over all ranks.
  //
  // sums (float64 [2, c]) = sum of x, sum of x^2. Terms are added up in float32 around a value of their own
  // channel and moved to 0 in float64, so that variances have float32's precision while the mean is less than
  // 10^4 deviations from 0; beyond, their relative error grows with 10^-16 times the square of that.
  virtual void batch_norm_sums(ConstView x, View sums) = 0;
  // From the sums of the whole batch: mean and rstd = 1 / sqrt(variance + eps). Moves the running statistics
  // by `momentum`: running = (1 - momentum) * running + momentum * batch, with the variance divided by count -
  // 1, as PyTorch does. count >= 2. The same bits on every device.
  virtual void batch_norm_statistics(ConstView sums, double count, double eps, double momentum, View mean,
                                     View rstd, View running_mean, View running_var) = 0;
  // rstd = 1 / sqrt(running_var + eps), for evaluation with running_mean as the mean.
  virtual void batch_norm_running(ConstView running_var, double eps, View rstd) = 0;
  // y = activation((x - mean) * rstd * gamma + beta + residual). The activation is none, relu or swish, and
  // not swish where there is a residual, which may be empty. y may be x or residual.
  virtual void batch_norm_forward(Activation activation, ConstView x, ConstView residual, ConstView mean,
                                  ConstView rstd, ConstView gamma, ConstView beta, View y) = 0;
  // With g = dy * activation', per channel of these rows: sums (float64 [2, c]) = sum of g, sum of g * (x -
  // mean) * rstd; dbeta, dgamma (+)= the same. y: what the forward pass wrote, for relu after a residual;
  // empty otherwise, when the derivative is found from x again.
  virtual void batch_norm_backward_sums(Activation activation, ConstView x, ConstView y, ConstView dy,
                                        ConstView mean, ConstView rstd, ConstView gamma, ConstView beta,
                                        View sums, View dgamma, View dbeta, bool accumulate) = 0;
  // From the sums of the whole batch: dx = gamma * rstd * (g - sums[0] / count - (x - mean) * rstd * sums[1] /
  // count); dresidual = g, unless empty. dx and dresidual may each be one of x, y and dy, but not the same.
  virtual void batch_norm_backward(Activation activation, ConstView x, ConstView y, ConstView dy,
                                   ConstView mean, ConstView rstd, ConstView gamma, ConstView beta,
                                   ConstView sums, double count, View dx, View dresidual) = 0;

  // --- Channels of [n, h, w, c], all T ----------------------------------------------------------------------
  // y[.., to .. to + count) (+)= x[.., from .. from + count), for tensors that differ in their last dimension:
  // what concatenation and splitting are made of, and their gradients. x and y do not overlap.
  virtual void copy_channels(ConstView x, std::int64_t from, View y, std::int64_t to, std::int64_t count,
                             bool accumulate = false) = 0;
  // y[.., i * groups + g] = x[.., g * c / groups + i]: ShuffleNet's shuffle (Zhang et al., CVPR 2018, section 3.1),
  // as PyTorch's ChannelShuffle. Its gradient is the shuffle with c / groups groups. x and y do not overlap.
  virtual void channel_shuffle(std::int64_t groups, ConstView x, View y) = 0;
  // y[n,h,w,c] = x[n,h,w,c] s[n,c]: squeeze-and-excitation's (Hu et al., CVPR 2018, equation 4). y may be x.
  virtual void scale_channels_forward(ConstView x, ConstView s, View y) = 0;
  // dx = dy s, ds[n,c] = sum of dy x over the image. dx may be dy or x.
  virtual void scale_channels_backward(ConstView x, ConstView s, ConstView dy, View dx, View ds) = 0;

  // --- Element-wise, all T ---------------------------------------------------------------------------------
  virtual void relu_forward(ConstView x, View y) = 0;  // y may be x
  // dx = dy where y > 0, else 0; y is the output of the activation. dx may be dy.
  virtual void relu_backward(ConstView y, ConstView dy, View dx) = 0;
  // y = activation(x); y may be x. The gradient is activation_backward.
  virtual void activation_forward(Activation activation, ConstView x, View y) = 0;
  // dx = dy * activation'(preactivation). dx may be dy.
  virtual void activation_backward(Activation activation, ConstView preactivation, ConstView dy, View dx) = 0;
  // y = activation(a + b). y may be a or b. The gradient of both is relu_backward's dx, or dy itself.
  virtual void add(ConstView a, ConstView b, Activation activation, View y) = 0;
  // Element e of row i (all dimensions but the first, flattened) is dropped by random_u32(key, first_slot +
  // i, e). The gradient is the same call on dy. y may be x.
  virtual void dropout(const DropoutMask& mask, ConstView x, View y) = 0;
  // Whole channels of [n, h, w, c] are dropped: element = channel. y may be x.
  virtual void dropout_channels(const DropoutMask& mask, ConstView x, View y) = 0;
  // [n, h, w, c] to [n, c, h, w] and back: PyTorch flattens channels first.
  virtual void nhwc_to_nchw(ConstView x, View y) = 0;
  virtual void nchw_to_nhwc(ConstView x, View y) = 0;

  // --- Linear --------------------------------------------------------------------------------------------
  // y[n,out] = activation(x[n,in] weight[out,in]^T + bias[out]); x and weight T, y T or float32; bias may be
  // empty. preactivation (type and shape of y), unless empty, is what the activation was applied to.
  virtual void linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation, View y,
                              View preactivation = {}) = 0;
  // dx (+)= dy weight; all T.
  virtual void linear_backward_data(ConstView dy, ConstView weight, View dx, bool accumulate = false) = 0;
  // dweight (+)= dy^T x, dbias (+)= sum of dy; x and dy T. dbias may be empty.
  virtual void linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias,
                                       bool accumulate) = 0;

  // --- Transformer ---------------------------------------------------------------------------------------
  // y[n,seq,h] (T) = word[ids] + position[0..seq) + type[types]; the tables are [rows, h], ids and types
  // int32 [n,seq], each within its table (the caller has checked them).
  virtual void embedding_forward(ConstView word, ConstView position, ConstView type, ConstView ids,
                                 ConstView types, View y) = 0;
  // y[m,h] = x[index[m],h], both T; index int32.
  virtual void gather_rows(ConstView x, ConstView index, View y) = 0;
  // x[row,h] += sum of dy[source,h] over the sources of each row: the gradient of gather_rows and of the
  // tables of embedding_forward. dy T [m,h], x T or float32; a source is less than m.
  virtual void scatter_add_rows(const RowGroups& groups, ConstView dy, View x) = 0;
  // sum = dropout(x) + residual; y = (sum - mean) * rstd * gamma + beta. x, residual, sum, y: T [n,seq,h],
  // where row i of a DropoutMask is sample i; gamma, beta [h]; mean and rstd [n,seq] are written for the
  // backward pass, rstd = 1 / sqrt(variance + eps). residual may be empty; sum may be x or residual.
  virtual void add_layer_norm_forward(const DropoutMask& mask, ConstView x, ConstView residual,
                                      ConstView gamma, ConstView beta, double eps, View sum, View y,
                                      View mean, View rstd) = 0;
  // dsum = the gradient of sum (and so of residual), dx = dropout(dsum); dgamma, dbeta (+)= theirs. dy, sum,
  // dsum, dx: T. dsum may be dy; dx may be empty, or dsum when nobody needs that.
  virtual void add_layer_norm_backward(const DropoutMask& mask, ConstView dy, ConstView sum, ConstView mean,
                                       ConstView rstd, ConstView gamma, View dsum, View dx, View dgamma,
                                       View dbeta, bool accumulate) = 0;
  // context[n,seq,heads*dim] = dropout(softmax(q k^T / sqrt(dim))) v per head, on qkv [n,seq,3,heads,dim];
  // both T. key_mask uint8 [n,seq]: a key with 0 gets no probability; a sample without any key gets a context
  // of zeros. log_sum_exp [n,heads,seq] is written for the backward pass, which forms the probabilities
  // again: no [seq,seq] tensor outlives the call.
  virtual void attention_forward(const Attention& attention, ConstView qkv, ConstView key_mask, View context,
                                 View log_sum_exp) = 0;
  virtual void attention_backward(const Attention& attention, ConstView qkv, ConstView key_mask,
                                  ConstView context, ConstView log_sum_exp, ConstView dcontext,
                                  View dqkv) = 0;

  // --- Loss ----------------------------------------------------------------------------------------------
  // Log-softmax and negative log-likelihood of logits [n, classes] (float32) against labels [n] (int32; -1
  // marks a row that does not count). Adds to sums (float64[4], device memory):
  //   [0] sum of -log p(label), [1] rows counted, [2] rows whose label has the highest logit,
  //   [3] rows whose label is among the k highest (k = min(top_k, classes)). Ties go to the lower class, and
  //   a row with a NaN logit counts as wrong.
  // dlogits (T), unless empty, = weight * (softmax - onehot(label)): the gradient of weight times the *sum*
  // (0 for rows that do not count). It may be the logits themselves.
  virtual void softmax_nll(ConstView logits, ConstView labels, int top_k, View sums, View dlogits,
                           float weight = 1) = 0;

  // --- Types ---------------------------------------------------------------------------------------------
  // y = x in another type, rounded to nearest even; float32, bfloat16 and float16, any two of them.
  virtual void cast(ConstView x, View y) = 0;

  // --- Reductions and optimizer over flat arenas (float32, any length) -----------------------------------
  // sum (float64[1]) = sum of squares of x, accumulated in float64 in a fixed order that does not depend on
  // the number of threads.
  virtual void sum_squares(ConstView x, View sum) = 0;
  // x *= factor, rounded once.
  virtual void scale(double factor, View x) = 0;
  // Turns a summed gradient into the step's: out (float32[2]) = {scale, norm} with
  //   norm  = sqrt(sum_squares) / count, scale = (1 / count) * min(1, clip_norm / (norm + 1e-6))
  // clip_norm <= 0: no clipping. count (float64[1]) = 0 gives scale 0 and norm 0.
  virtual void gradient_scale(ConstView sum_squares, ConstView count, float clip_norm, View out) = 0;
  // One optimizer step on the whole arena; the gradient used is grad * scale[0] (scale: float32, device
  // memory). States are as long as the parameters and start as zeros.
  virtual void sgd_step(const SgdOptions& options, ConstView grad, ConstView scale, View param,
                        View momentum) = 0;
  virtual void adam_step(const AdamOptions& options, ConstView grad, ConstView scale, View param,
                         View exp_avg, View exp_avg_sq) = 0;
  // The segments are the tensors of the arena, in order; the rest of it is padding and left alone.
  virtual void lamb_step(const LambOptions& options, std::span<const Segment> host_segments, ConstView grad,
                         ConstView scale, View param, View exp_avg, View exp_avg_sq) = 0;
  virtual void adadelta_step(const AdadeltaOptions& options, ConstView grad, ConstView scale, View param,
                             View square_avg, View acc_delta) = 0;
};

// The CPU backend: oneDNN for convolution and matrix products, OpenMP loops for the rest. `threads` is the
// OpenMP thread count of this rank; memory_limit_bytes = 0 means machine_memory_bytes().
std::unique_ptr<Backend> make_cpu_backend(int threads, std::size_t memory_limit_bytes = 0);

// The memory of this machine, or less where the control groups of this process (a container's or a batch
// job's) allow less.
std::size_t machine_memory_bytes();

}  // namespace motley
