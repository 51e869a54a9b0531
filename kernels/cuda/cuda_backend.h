// The CUDA backend: cuBLAS for matrix products, cuDNN for convolutions, own kernels for the rest. The methods
// are defined one family of operations per file, next to this header.
//
// All operations are put on one stream, and none waits for the device but copy_to_host, synchronize, and
// those that need more working memory than there was. All calls come from one thread. Stretches are run as CUDA graphs
// (graphs.h): operations take part in them by stream(), all else goes by outer_stream().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/graphs.h"
#include "kernels/gpus.h"

namespace motley {

namespace cuda {
class MatrixProducts;  // matrix_products.h
class Convolutions;    // convolutions.h
}  // namespace cuda

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, const GpuOptions& options);
  ~CudaBackend() override;

  const DeviceInfo& device() const override { return device_; }
  int device_index() const { return index_; }
  // Where the next operation is put: to be asked before each, since in a stretch it is captured. Not for events, copies
  // from and to the host, NCCL, and whatever else waits or allocates.
  cudaStream_t stream() const {
    graphs_->take_part();
    return stream_;
  }
  // The same stream for these. All operations so far have been put on it.
  cudaStream_t outer_stream() const {
    graphs_->interrupt();
    return stream_;
  }
  int multiprocessors() const { return multiprocessors_; }
  // The cache that all multiprocessors share.
  std::int64_t cache_bytes() const { return cache_bytes_; }
  // 10 * major + minor of its compute capability.
  int capability() const { return capability_; }
  bool deterministic() const { return deterministic_; }
  // Of the device, or --memory-limit's: what working memory may be measured by. It does not depend on what else is
  // on the device, nor do results, therefore.
  std::size_t whole_memory_bytes() const { return whole_memory_bytes_; }
  cuda::MatrixProducts& products() { return *products_; }

  void* allocate(std::size_t bytes) override;
  void release(void* pointer, std::size_t bytes) noexcept override;
  std::size_t allocated_bytes() const override { return allocated_; }
  void set_memory_limit(std::size_t bytes) override { device_.memory_limit_bytes = bytes; }
  void release_scratch() override;
  // The host's memory may change as soon as the call is back.
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void fill_zero(View x) override;
  void synchronize() override;
  void run_stretch(const StretchKey& key, const std::function<void()>& work,
                   const std::function<void()>& rehearsal) override {
    graphs_->run(key, work, rehearsal);
  }
  std::int64_t mark() override;
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

  // Working memory of one operation, 256-byte aligned, valid until the next call of scratch() (operations that
  // come later on the stream may reuse it). It grows to the largest request and counts as allocated memory.
  std::byte* scratch(std::size_t bytes);
  // The same for `count` of a type.
  template <class T>
  T* scratch(std::int64_t count) {
    return reinterpret_cast<T*>(scratch(static_cast<std::size_t>(count) * sizeof(T)));
  }

 private:
  std::byte* stage(std::size_t bytes);

  int index_;
  int multiprocessors_ = 1, capability_ = 0;
  std::int64_t cache_bytes_ = 0;
  bool deterministic_;
  std::size_t whole_memory_bytes_ = 0;
  DeviceInfo device_;
  cuda::Stream stream_;
  std::unique_ptr<cuda::Graphs> graphs_;
  std::size_t allocated_ = 0;
  Buffer scratch_;

  // What copy_to_device copies from: two halves of pinned memory, used in turn; `staged_[h]` is recorded when
  // a half is full.
  cuda::PinnedBuffer staging_;
  std::size_t staging_used_ = 0;
  int staging_half_ = 0;
  cuda::Event staged_[2];
  cuda::PinnedBuffer landing_;  // for copy_to_host

  // mark() number n is marks_[n % size].
  std::vector<cuda::Event> marks_;
  std::int64_t marks_made_ = 0;

  std::unique_ptr<cuda::MatrixProducts> products_;
  std::unique_ptr<cuda::Convolutions> convolutions_;
};

}  // namespace motley
