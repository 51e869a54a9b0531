// Convolutions of the stand-in of cuDNN: what its descriptors hold, its algorithms, and their arithmetic. The
// calls are in cudnn.cc.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <vector>

struct cudnnContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

struct cudnnTensorStruct {
  bool set = false;
  cudnnDataType_t type{};
  cudnnTensorFormat_t format{};
  int n = 0, c = 0, h = 0, w = 0;
  std::int64_t stride_n = 0, stride_c = 0, stride_h = 0, stride_w = 0;
  std::size_t elements() const { return static_cast<std::size_t>(std::int64_t{n} * c * h * w); }
  std::size_t bytes() const { return (type == CUDNN_DATA_FLOAT ? 4 : 2) * elements(); }
};

// k takes the place of n.
struct cudnnFilterStruct : cudnnTensorStruct {};

struct cudnnConvolutionStruct {
  bool set = false;
  int pad_h = 0, pad_w = 0, stride_h = 1, stride_w = 1, groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace motley::sim {

enum Operation : std::uint8_t { forward, backward_data, backward_filter };

// All descriptors of a convolution, by value: the program may change its own before the stream comes to the
// work.
struct Convolution {
  Operation operation;
  cudnnTensorStruct x, y;
  cudnnFilterStruct w;
  cudnnConvolutionStruct conv;

  bool channels_last() const { return x.format == CUDNN_TENSOR_NHWC; }
};

// Checks that the descriptors fit each other: also in their type, one of cuDNN's PSEUDO_HALF_CONFIG,
// PSEUDO_BFLOAT16_CONFIG and FLOAT_CONFIG.
Convolution convolution_of(const char* call, Operation operation, const cudnnTensorStruct* x,
                           const cudnnFilterStruct* w, const cudnnConvolutionStruct* conv,
                           const cudnnTensorStruct* y);

// What is known of an algorithm before it runs.
struct Estimate {
  int algorithm = 0;
  cudnnStatus_t status = CUDNN_STATUS_NOT_SUPPORTED;
  std::size_t workspace_bytes = 0;
  bool deterministic = false;
};
// Of all algorithms, those that work first, the fastest first.
std::vector<Estimate> estimates_of(const Convolution& c);

// a and b are the inputs, in the order of the call.
struct Operands {
  const cudnnTensorStruct& a_shape;
  const void* a;
  const cudnnTensorStruct& b_shape;
  const void* b;
  const cudnnTensorStruct& out_shape;
  void* out;
};
cudnnStatus_t run(const char* call, cudnnHandle_t handle, const Convolution& c, int algorithm,
                  const void* alpha, const void* beta, const Operands& operands, void* work,
                  std::size_t work_bytes);

}  // namespace motley::sim
