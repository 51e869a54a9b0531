// Convolutions by cuDNN. Which algorithm is used, and in which layout, is decided once per shape and kept.
//
// The choice follows cuDNN's own estimate, not measurements: micro-batch sizes change over a run, so that new
// shapes keep coming, and what was measured would differ from run to run, and with it the bits of the
// results. Of the algorithms that cuDNN knows, those are preferred that give the same bits twice, even
// without --deterministic (kernels/backend.h promises it); CUDNN_CONVOLUTION_BWD_DATA_ALGO_0,
// _BWD_FILTER_ALGO_0 and _BWD_FILTER_ALGO_3 add with atomics and do not. They are used when there is no
// other, and never with the option.
//
// cuDNN is asked for channels-last first; where it has nothing for that, tensors go through channels-first
// copies. All tensors of one of its convolutions have one type (its configurations PSEUDO_HALF_CONFIG,
// PSEUDO_BFLOAT16_CONFIG and FLOAT_CONFIG, all with float32 sums): the gradient of weights comes in the type of
// the activations, and is converted. Where it has nothing for a half type, as for bfloat16 before compute
// capability 8.0, tensors go through float32 copies.
#pragma once

#include <cudnn.h>

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/operation_checks.h"
#include "kernels/primitive_cache.h"

namespace motley {
class CudaBackend;
namespace cuda {

class Convolutions {
 public:
  explicit Convolutions(CudaBackend& backend) : backend_(backend) {}
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  // x, weight and y of the type sizes.type, and so their gradients, but that of the weights.
  void forward(const ConvolutionSizes& sizes, const void* x, const void* weight, void* y);
  void backward_data(const ConvolutionSizes& sizes, const void* dy, const void* weight, void* dx);
  void backward_weights(const ConvolutionSizes& sizes, const void* x, const void* dy, float* dweight,
                        bool accumulate);

 private:
  struct Plan;
  struct Tensors;

  // Created by the first convolution: networks without any do without cuDNN's memory.
  cudnnHandle_t handle();
  template <class Operation>
  void execute(const ConvolutionSizes& sizes, const Tensors& tensors, bool accumulate);
  template <class Operation>
  void find_algorithms(Plan& plan, const ConvolutionSizes& sizes);
  template <class Operation>
  cudnnStatus_t attempt(const Plan& plan, const ConvolutionSizes& sizes, const Tensors& tensors,
                        bool accumulate);
  bool take_smaller_workspace(Plan& plan) const;
  bool next_stage(Plan& plan, DType type) const;

  CudaBackend& backend_;
  cudnnHandle_t handle_ = nullptr;
  PrimitiveCache plans_;
};

}  // namespace cuda
}  // namespace motley
