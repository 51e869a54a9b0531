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
//  * Reductions have a fixed order: the same call on the same device gives the same bits twice, so there are
//    no floating-point atomics.
//  * "accumulate" adds to the output instead of overwriting it; gradients of parameters are summed over
//    micro-batches that way (law 2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/philox.h"
#include "core/view.h"

namespace motley {

struct DeviceInfo {
  std::string kind;                    // "cpu" or "cuda"
  std::string name;                    // the processor's or card's own name
  int threads = 1;                     // OpenMP threads (cpu)
  std::size_t memory_limit_bytes = 0;  // what allocate() may hand out in total
};

// Applied to the output of conv2d_forward and linear_forward. NaN stays NaN: a run that diverges shows it.
enum class Activation : std::uint8_t { none, relu };

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
struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual const DeviceInfo& device() const = 0;

  // --- Memory --------------------------------------------------------------------------------------------
  // 64-byte aligned device memory. Throws Error(device) when the limit is reached; see Buffer for RAII.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* pointer, std::size_t bytes) noexcept = 0;
  virtual std::size_t allocated_bytes() const = 0;
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;  // synchronizes
  virtual void fill_zero(View x) = 0;
  virtual void synchronize() = 0;

  // --- Input ---------------------------------------------------------------------------------------------
  // y[n,h,w,c] = (x[n,h,w,c] / 255 - mean[c]) / deviation[c]; x uint8, y float32.
  virtual void normalize_images(ConstView x, std::span<const float> host_mean,
                                std::span<const float> host_deviation, View y) = 0;

  // --- Convolution and pooling, channels-last -------------------------------------------------------------
  // y[n,oh,ow,k] = activation(x * weight + bias); bias [k] may be empty.
  // o = (i + 2 pad - kernel) / stride + 1.
  virtual void conv2d_forward(const Conv2d& conv, ConstView x, ConstView weight, ConstView bias,
                              Activation activation, View y) = 0;
  // dx = gradient of x from dy (the gradient before the activation: see relu_backward).
  virtual void conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) = 0;
  // dweight and dbias (may be empty) from x and dy.
  virtual void conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight,
                                       View dbias, bool accumulate) = 0;
  // y = maximum of each window; argmax (uint8, shape of y) = its place in the window, kernel_w * row +
  // column, the first one when several are equal, as PyTorch. Windows of at most 256 elements.
  virtual void max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) = 0;
  virtual void max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) = 0;

  // --- Element-wise --------------------------------------------------------------------------------------
  virtual void relu_forward(ConstView x, View y) = 0;  // y may be x
  // dx = dy where y > 0, else 0; y is the output of the activation. dx may be dy.
  virtual void relu_backward(ConstView y, ConstView dy, View dx) = 0;
  // Element e of row i (all dimensions but the first, flattened) is dropped by random_u32(key, first_slot +
  // i, e). The gradient is the same call on dy. y may be x.
  virtual void dropout(const DropoutMask& mask, ConstView x, View y) = 0;
  // Whole channels of [n, h, w, c] are dropped: element = channel. y may be x.
  virtual void dropout_channels(const DropoutMask& mask, ConstView x, View y) = 0;
  // [n, h, w, c] to [n, c, h, w] and back: PyTorch flattens channels first.
  virtual void nhwc_to_nchw(ConstView x, View y) = 0;
  virtual void nchw_to_nhwc(ConstView x, View y) = 0;

  // --- Linear --------------------------------------------------------------------------------------------
  // y[n,out] = activation(x[n,in] weight[out,in]^T + bias[out]); bias may be empty.
  virtual void linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation,
                              View y) = 0;
  virtual void linear_backward_data(ConstView dy, ConstView weight, View dx) = 0;
  virtual void linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias,
                                       bool accumulate) = 0;

  // --- Loss ----------------------------------------------------------------------------------------------
  // Log-softmax and negative log-likelihood of logits [n, classes] (float32) against labels [n] (int32; -1
  // marks a row that does not count). Adds to sums (float64[4], device memory):
  //   [0] sum of -log p(label), [1] rows counted, [2] rows whose label has the highest logit,
  //   [3] rows whose label is among the k highest (k = min(top_k, classes)). Ties go to the lower class, and
  //   a row with a NaN logit counts as wrong.
  // dlogits, unless empty, = softmax - onehot(label): the gradient of the *sum* (0 for rows that do not
  // count). It may be the logits themselves.
  virtual void softmax_nll(ConstView logits, ConstView labels, int top_k, View sums, View dlogits) = 0;

  // --- Reductions and optimizer over flat arenas (float32, any length) -----------------------------------
  // sum (float64[1]) = sum of squares of x, accumulated in float64 in a fixed order that does not depend on
  // the number of threads.
  virtual void sum_squares(ConstView x, View sum) = 0;
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
  virtual void adadelta_step(const AdadeltaOptions& options, ConstView grad, ConstView scale, View param,
                             View square_avg, View acc_delta) = 0;
};

// The CPU backend: oneDNN for convolution and matrix products, OpenMP loops for the rest. `threads` is the
// OpenMP thread count of this rank; memory_limit_bytes = 0 means the machine's memory.
std::unique_ptr<Backend> make_cpu_backend(int threads, std::size_t memory_limit_bytes = 0);

}  // namespace motley
