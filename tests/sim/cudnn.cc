// The calls of cuDNN that the program makes, as the cuDNN API reference describes them: convolutions of
// float32, float16 and bfloat16 tensors with sums in float32, channels-first and channels-last.
//
// Several algorithms that differ in memory and determinism are offered for each operation. Those that are not
// deterministic add in an order that is drawn anew in each call, in float32. MOTLEY_SIM_CUDNN_NHWC = 0 knows
// no algorithm for channels-last; "run" knows some, and refuses them when they are to run.
// MOTLEY_SIM_CUDNN_HALF = 0 knows none for the half types; bfloat16 has none before compute capability 8.0.
#include <cudnn.h>

#include "cudart.h"
#include "cudnn_convolution.h"
#include "device.h"
#include "simt.h"

namespace sim = motley::sim;

namespace {

using sim::Violation;

template <class F>
cudnnStatus_t entry(const char* name, F work) {
  const sim::Call call(name);
  if (sim::lost_device() != cudaSuccess) return CUDNN_STATUS_EXECUTION_FAILED;
  if (call.fault()) return static_cast<cudnnStatus_t>(*call.fault());
  return work();
}

template <class T>
cudnnStatus_t create(const char* name, T** object) {
  return entry(name, [&] {
    *object = new T;
    return CUDNN_STATUS_SUCCESS;
  });
}

template <class T>
cudnnStatus_t destroy(T* object) {
  delete object;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set(cudnnTensorStruct* t, cudnnDataType_t type, cudnnTensorFormat_t format, int n, int c, int h,
                  int w) {
  if (n <= 0 || c <= 0 || h <= 0 || w <= 0) return CUDNN_STATUS_BAD_PARAM;
  if (format != CUDNN_TENSOR_NCHW && format != CUDNN_TENSOR_NHWC) return CUDNN_STATUS_BAD_PARAM;
  if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16)
    throw Violation("only float32, float16 and bfloat16 tensors are simulated");
  if (std::int64_t{n} * c * h * w > INT32_MAX) return CUDNN_STATUS_NOT_SUPPORTED;
  static_cast<cudnnTensorStruct&>(*t) = {true, type, format, n, c, h, w};
  if (format == CUDNN_TENSOR_NCHW) {
    t->stride_w = 1, t->stride_h = w, t->stride_c = std::int64_t{h} * w, t->stride_n = t->stride_c * c;
  } else {
    t->stride_c = 1, t->stride_w = c, t->stride_h = std::int64_t{w} * c, t->stride_n = t->stride_h * h;
  }
  return CUDNN_STATUS_SUCCESS;
}

template <class Performance>
cudnnStatus_t rank(const sim::Convolution& c, int requested, int* count, Performance* found) {
  *count = 0;
  for (const sim::Estimate& e : sim::estimates_of(c)) {
    if (*count == requested) break;
    Performance& p = found[(*count)++];
    p = {};
    p.algo = static_cast<decltype(p.algo)>(e.algorithm);
    p.status = e.status;
    p.time = -1;
    p.memory = e.workspace_bytes;
    p.determinism = e.deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC;
    p.mathType = c.conv.math;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t workspace(const sim::Convolution& c, int algorithm, std::size_t* bytes) {
  for (const sim::Estimate& e : sim::estimates_of(c)) {
    if (e.algorithm != algorithm) continue;
    *bytes = e.workspace_bytes;
    return e.status;
  }
  return CUDNN_STATUS_NOT_SUPPORTED;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return entry("cudnnCreate", [&] {
    *handle = new cudnnContext{sim::current_device()};
    return CUDNN_STATUS_SUCCESS;
  });
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  return destroy(handle);
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return entry("cudnnSetStream", [&] {
    sim::stream_of(stream);
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
  });
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "a status that the stand-in has no name for";
  }
}

void cudnnGetLastErrorString(char* message, std::size_t max_size) {
  if (max_size > 0) message[0] = 0;
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* descriptor) {
  return create("cudnnCreateTensorDescriptor", descriptor);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor) {
  return destroy(descriptor);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  return entry("cudnnSetTensor4dDescriptor", [&] { return set(descriptor, type, format, n, c, h, w); });
}

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* descriptor) {
  return create("cudnnCreateFilterDescriptor", descriptor);
}

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor) {
  return destroy(descriptor);
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return entry("cudnnSetFilter4dDescriptor", [&] { return set(descriptor, type, format, k, c, h, w); });
}

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* descriptor) {
  return create("cudnnCreateConvolutionDescriptor", descriptor);
}

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor) {
  return destroy(descriptor);
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor, int pad_h, int pad_w,
                                              int u, int v, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute_type) {
  return entry("cudnnSetConvolution2dDescriptor", [&] {
    if (pad_h < 0 || pad_w < 0 || u <= 0 || v <= 0 || dilation_h <= 0 || dilation_w <= 0)
      return CUDNN_STATUS_BAD_PARAM;
    if (dilation_h != 1 || dilation_w != 1) throw Violation("dilated convolutions are not simulated");
    if (mode != CUDNN_CROSS_CORRELATION)
      throw Violation("cudnnSetConvolution2dDescriptor: PyTorch's convolution is a cross-correlation");
    if (compute_type != CUDNN_DATA_FLOAT) throw Violation("only sums in float32 are simulated");
    // It sets the group count and the math type to their defaults.
    *descriptor = {true, pad_h, pad_w, u, v};
    return CUDNN_STATUS_SUCCESS;
  });
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor, int groups) {
  return entry("cudnnSetConvolutionGroupCount", [&] {
    if (groups < 1) return CUDNN_STATUS_BAD_PARAM;
    descriptor->groups = groups;
    return CUDNN_STATUS_SUCCESS;
  });
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor, cudnnMathType_t math) {
  return entry("cudnnSetConvolutionMathType", [&] {
    descriptor->math = math;
    return CUDNN_STATUS_SUCCESS;
  });
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                     const cudnnFilterDescriptor_t w,
                                                     const cudnnConvolutionDescriptor_t conv,
                                                     const cudnnTensorDescriptor_t y, const int requested,
                                                     int* count, cudnnConvolutionFwdAlgoPerf_t* found) {
  constexpr auto name = "cudnnGetConvolutionForwardAlgorithm_v7";
  return entry(name, [&] {
    return rank(sim::convolution_of(name, sim::forward, x, w, conv, y), requested, count, found);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                          const cudnnTensorDescriptor_t dy,
                                                          const cudnnConvolutionDescriptor_t conv,
                                                          const cudnnTensorDescriptor_t dx,
                                                          const int requested, int* count,
                                                          cudnnConvolutionBwdDataAlgoPerf_t* found) {
  constexpr auto name = "cudnnGetConvolutionBackwardDataAlgorithm_v7";
  return entry(name, [&] {
    return rank(sim::convolution_of(name, sim::backward_data, dx, w, conv, dy), requested, count, found);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                            const cudnnTensorDescriptor_t dy,
                                                            const cudnnConvolutionDescriptor_t conv,
                                                            const cudnnFilterDescriptor_t dw,
                                                            const int requested, int* count,
                                                            cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  constexpr auto name = "cudnnGetConvolutionBackwardFilterAlgorithm_v7";
  return entry(name, [&] {
    return rank(sim::convolution_of(name, sim::backward_filter, x, dw, conv, dy), requested, count, found);
  });
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                      const cudnnFilterDescriptor_t w,
                                                      const cudnnConvolutionDescriptor_t conv,
                                                      const cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm,
                                                      std::size_t* bytes) {
  constexpr auto name = "cudnnGetConvolutionForwardWorkspaceSize";
  return entry(name, [&] {
    return workspace(sim::convolution_of(name, sim::forward, x, w, conv, y), algorithm, bytes);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, const cudnnFilterDescriptor_t w,
                                                           const cudnnTensorDescriptor_t dy,
                                                           const cudnnConvolutionDescriptor_t conv,
                                                           const cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm,
                                                           std::size_t* bytes) {
  constexpr auto name = "cudnnGetConvolutionBackwardDataWorkspaceSize";
  return entry(name, [&] {
    return workspace(sim::convolution_of(name, sim::backward_data, dx, w, conv, dy), algorithm, bytes);
  });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t x,
                                                             const cudnnTensorDescriptor_t dy,
                                                             const cudnnConvolutionDescriptor_t conv,
                                                             const cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm,
                                                             std::size_t* bytes) {
  constexpr auto name = "cudnnGetConvolutionBackwardFilterWorkspaceSize";
  return entry(name, [&] {
    return workspace(sim::convolution_of(name, sim::backward_filter, x, dw, conv, dy), algorithm, bytes);
  });
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha,
                                      const cudnnTensorDescriptor_t x_desc, const void* x,
                                      const cudnnFilterDescriptor_t w_desc, const void* w,
                                      const cudnnConvolutionDescriptor_t conv,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* work, std::size_t work_bytes,
                                      const void* beta, const cudnnTensorDescriptor_t y_desc, void* y) {
  constexpr auto name = "cudnnConvolutionForward";
  return entry(name, [&] {
    return sim::run(name, handle, sim::convolution_of(name, sim::forward, x_desc, w_desc, conv, y_desc),
                    algorithm, alpha, beta, {*x_desc, x, *w_desc, w, *y_desc, y}, work, work_bytes);
  });
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha,
                                           const cudnnFilterDescriptor_t w_desc, const void* w,
                                           const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                           const cudnnConvolutionDescriptor_t conv,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* work,
                                           std::size_t work_bytes, const void* beta,
                                           const cudnnTensorDescriptor_t dx_desc, void* dx) {
  constexpr auto name = "cudnnConvolutionBackwardData";
  return entry(name, [&] {
    return sim::run(name, handle,
                    sim::convolution_of(name, sim::backward_data, dx_desc, w_desc, conv, dy_desc), algorithm,
                    alpha, beta, {*dy_desc, dy, *w_desc, w, *dx_desc, dx}, work, work_bytes);
  });
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha,
                                             const cudnnTensorDescriptor_t x_desc, const void* x,
                                             const cudnnTensorDescriptor_t dy_desc, const void* dy,
                                             const cudnnConvolutionDescriptor_t conv,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* work,
                                             std::size_t work_bytes, const void* beta,
                                             const cudnnFilterDescriptor_t dw_desc, void* dw) {
  constexpr auto name = "cudnnConvolutionBackwardFilter";
  return entry(name, [&] {
    return sim::run(name, handle,
                    sim::convolution_of(name, sim::backward_filter, x_desc, dw_desc, conv, dy_desc),
                    algorithm, alpha, beta, {*x_desc, x, *dy_desc, dy, *dw_desc, dw}, work, work_bytes);
  });
}

}  // extern "C"
