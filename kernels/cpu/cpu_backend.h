// The CPU backend: oneDNN for matrix products and some convolutions (conv2d.cc), OpenMP loops for the rest. The methods are
// defined one family of operations per file, next to this header.
//
// Threads: every operation runs on the backend's own number of threads, whatever OpenMP's default is, and
// leaves that default as it found it. Sums are formed over blocks whose size does not depend on the number of
// threads and combined serially, so that all operations but convolutions and matrix products, where oneDNN
// divides the work, give the same bits on any number of threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/primitive_cache.h"

namespace motley {

struct Bf16;     // bfloat16.h
struct Product;  // product.h

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, std::size_t memory_limit_bytes);

  const DeviceInfo& device() const override { return device_; }

  void* allocate(std::size_t bytes) override;
  void release(void* pointer, std::size_t bytes) noexcept override;
  std::size_t allocated_bytes() const override { return allocated_.load(std::memory_order_relaxed); }
  void set_memory_limit(std::size_t bytes) override { device_.memory_limit_bytes = bytes; }
  void release_scratch() override { scratch_ = Buffer(); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void fill_zero(View x) override;
  void synchronize() override {}  // operations finish before they return
  std::int64_t mark() override;   // nanoseconds of the steady clock
  double seconds_between(std::int64_t from, std::int64_t to) override;

  void normalize_images(ConstView x, std::span<const float> host_mean, std::span<const float> host_deviation,
                        View y) override;

  void conv2d_forward(const Conv2d& conv, ConstView x, ConstView weight, ConstView bias,
                      Activation activation, View y) override;
  void conv2d_backward_data(const Conv2d& conv, ConstView dy, ConstView weight, View dx) override;
  void conv2d_backward_weights(const Conv2d& conv, ConstView x, ConstView dy, View dweight, View dbias,
                               bool accumulate) override;
  void max_pool2d_forward(const Pool2d& pool, ConstView x, View y, View argmax) override;
  void max_pool2d_backward(const Pool2d& pool, ConstView dy, ConstView argmax, View dx) override;
  void avg_pool2d_forward(const Pool2d& pool, ConstView x, View y) override;
  void avg_pool2d_backward(const Pool2d& pool, ConstView dy, View dx) override;

  void copy_channels(ConstView x, std::int64_t from, View y, std::int64_t to, std::int64_t count,
                     bool accumulate) override;
  void channel_shuffle(std::int64_t groups, ConstView x, View y) override;
  void scale_channels_forward(ConstView x, ConstView s, View y) override;
  void scale_channels_backward(ConstView x, ConstView s, ConstView dy, View dx, View ds) override;

  void batch_norm_sums(ConstView x, View sums) override;
  void batch_norm_statistics(ConstView sums, double count, double eps, double momentum, View mean, View rstd,
                             View running_mean, View running_var) override;
  void batch_norm_running(ConstView running_var, double eps, View rstd) override;
  void batch_norm_forward(Activation activation, ConstView x, ConstView residual, ConstView mean,
                          ConstView rstd, ConstView gamma, ConstView beta, View y) override;
  void batch_norm_backward_sums(Activation activation, ConstView x, ConstView y, ConstView dy, ConstView mean,
                                ConstView rstd, ConstView gamma, ConstView beta, View sums, View dgamma,
                                View dbeta, bool accumulate) override;
  void batch_norm_backward(Activation activation, ConstView x, ConstView y, ConstView dy, ConstView mean,
                           ConstView rstd, ConstView gamma, ConstView beta, ConstView sums, double count,
                           View dx, View dresidual) override;

  void relu_forward(ConstView x, View y) override;
  void relu_backward(ConstView y, ConstView dy, View dx) override;
  void activation_forward(Activation activation, ConstView x, View y) override;
  void activation_backward(Activation activation, ConstView preactivation, ConstView dy, View dx) override;
  void add(ConstView a, ConstView b, Activation activation, View y) override;
  void dropout(const DropoutMask& mask, ConstView x, View y) override;
  void dropout_channels(const DropoutMask& mask, ConstView x, View y) override;
  void nhwc_to_nchw(ConstView x, View y) override;
  void nchw_to_nhwc(ConstView x, View y) override;

  void linear_forward(ConstView x, ConstView weight, ConstView bias, Activation activation, View y,
                      View preactivation) override;
  void linear_backward_data(ConstView dy, ConstView weight, View dx, bool accumulate) override;
  void linear_backward_weights(ConstView x, ConstView dy, View dweight, View dbias, bool accumulate) override;

  void embedding_forward(ConstView word, ConstView position, ConstView type, ConstView ids, ConstView types,
                         View y) override;
  void gather_rows(ConstView x, ConstView index, View y) override;
  void scatter_add_rows(const RowGroups& groups, ConstView dy, View x) override;
  void add_layer_norm_forward(const DropoutMask& mask, ConstView x, ConstView residual, ConstView gamma,
                              ConstView beta, double eps, View sum, View y, View mean, View rstd) override;
  void add_layer_norm_backward(const DropoutMask& mask, ConstView dy, ConstView sum, ConstView mean,
                               ConstView rstd, ConstView gamma, View dsum, View dx, View dgamma, View dbeta,
                               bool accumulate) override;
  void attention_forward(const Attention& attention, ConstView qkv, ConstView key_mask, View context,
                         View log_sum_exp) override;
  void attention_backward(const Attention& attention, ConstView qkv, ConstView key_mask, ConstView context,
                          ConstView log_sum_exp, ConstView dcontext, View dqkv) override;

  void softmax_nll(ConstView logits, ConstView labels, int top_k, View sums, View dlogits,
                   float weight) override;

  void cast(ConstView x, View y) override;

  void sum_squares(ConstView x, View sum) override;
  void scale(double factor, View x) override;
  void gradient_scale(ConstView sum_squares, ConstView count, float clip_norm, View out) override;
  void sgd_step(const SgdOptions& options, ConstView grad, ConstView scale, View param,
                View momentum) override;
  void adam_step(const AdamOptions& options, ConstView grad, ConstView scale, View param, View exp_avg,
                 View exp_avg_sq) override;
  void lamb_step(const LambOptions& options, std::span<const Segment> host_segments, ConstView grad,
                 ConstView scale, View param, View exp_avg, View exp_avg_sq) override;
  void adadelta_step(const AdadeltaOptions& options, ConstView grad, ConstView scale, View param,
                     View square_avg, View acc_delta) override;

 private:
  // Working memory of one operation, 64-byte aligned, valid until the next call of scratch(). It grows to the
  // largest request and counts as allocated memory.
  std::byte* scratch(std::size_t bytes);
  // c as `product` says. `bias` may be null.
  void multiply(const char* operation, const Product& product, const void* a, const void* b,
                const float* bias, void* c);
  void multiply_widened(const char* operation, const Product& product, const Bf16* a, const Bf16* b,
                        const float* bias, void* c);
  int threads() const { return device_.threads; }

  DeviceInfo device_;
  std::atomic<std::size_t> allocated_{0};
  Buffer scratch_;
  PrimitiveCache primitives_;
};

}  // namespace motley
