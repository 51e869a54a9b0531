// Which of cuDNN's algorithms the CUDA backend uses, and what the stand-in of cuDNN refuses.
#include <cudnn.h>

#include <cstdlib>

#include "convolutions_run.h"
#include "core/bfloat16.h"
#include "device.h"
#include "device_array.h"
#include "environment.h"
#include "kernels/buffer.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::test {
namespace {

using Names = std::vector<std::string>;

// A 3 x 3 convolution of [2, 9, 9, 4] to [2, 7, 7, 8], or another kernel.
class ConvolutionsTest : public testing::Test {
 protected:
  void SetUp() override {
    sim::set_order(1);
    open({});
  }
  void TearDown() override { sim::set_fault(""); }

  void open(const GpuOptions& options) {
    x = Buffer(), y = Buffer(), weight = Buffer();
    backend = cuda::gpu_driver().open(0, options);
    type = DType::f32;
    x = Buffer(*backend, 2 * 9 * 9 * 4 * sizeof(float));
    y = Buffer(*backend, 2 * 8 * 8 * 8 * sizeof(float));
    weight = Buffer(*backend, 8 * 4 * 81 * sizeof(float));
    sim::take_convolutions();
  }
  Names forward(std::int64_t kernel = 3) {
    backend->conv2d_forward(conv(kernel), x_view(), weight_view(kernel), {}, Activation::none,
                            y_view(kernel));
    return sim::take_convolutions();
  }
  Names backward_data(std::int64_t kernel = 3) {
    backend->conv2d_backward_data(conv(kernel), y_view(kernel), weight_view(kernel), x_view());
    return sim::take_convolutions();
  }
  Names backward_weights(std::int64_t kernel = 3) {
    backend->conv2d_backward_weights(conv(kernel), x_view(), y_view(kernel), dweight_view(kernel), {}, false);
    return sim::take_convolutions();
  }

  static Conv2d conv(std::int64_t kernel) { return {.kernel_h = kernel, .kernel_w = kernel}; }
  View x_view() const { return x.view(type, {2, 9, 9, 4}); }
  View y_view(std::int64_t kernel) const { return y.view(type, {2, 10 - kernel, 10 - kernel, 8}); }
  View weight_view(std::int64_t kernel) const { return weight.view(type, {8, 4, kernel, kernel}); }
  View dweight_view(std::int64_t kernel) const { return weight.view(DType::f32, {8, 4, kernel, kernel}); }

  std::unique_ptr<Backend> backend;
  Buffer x, y, weight;
  DType type = DType::f32;  // of all but gradients of weights
};

TEST_F(ConvolutionsTest, algorithms_that_give_the_same_bits_go_before_faster_ones) {
  EXPECT_EQ(forward(), Names{"forward 7 nhwc"});
  EXPECT_EQ(backward_data(), Names{"data 1 nhwc"});
  EXPECT_EQ(backward_weights(), Names{"filter 1 nhwc"});
}

TEST_F(ConvolutionsTest, algorithms_that_do_not_are_used_when_there_is_no_other_and_never_if_forbidden) {
  EXPECT_EQ(backward_data(9), Names{"data 0 nhwc"});
  EXPECT_EQ(backward_weights(9), Names{"filter 3 nhwc"});
  open({.deterministic = true});
  EXPECT_EQ(backward_data(), Names{"data 1 nhwc"});
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      backward_data(9);
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::device);
      for (const char* part :
           {"no deterministic algorithm", "cudnnConvolutionBackwardData", "9x9", "[2, 9, 9, 4]"})
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST_F(ConvolutionsTest, channels_first_is_used_where_channels_last_is_not_supported) {
  const Environment refuses("MOTLEY_SIM_CUDNN_NHWC", "0");
  EXPECT_EQ(forward(), Names{"forward 7 nchw"});
  EXPECT_EQ(backward_data(), Names{"data 5 nchw"});
  EXPECT_EQ(backward_weights(), Names{"filter 1 nchw"});
}

TEST_F(ConvolutionsTest, what_turns_out_not_to_be_supported_is_not_tried_again) {
  const Environment refuses("MOTLEY_SIM_CUDNN_NHWC", "run");
  EXPECT_EQ(forward(), Names{"forward 7 nchw"});
  ::setenv("MOTLEY_SIM_CUDNN_NHWC", "1", 1);
  EXPECT_EQ(forward(), Names{"forward 7 nchw"});
}

TEST_F(ConvolutionsTest, half_types_are_multiplied_as_they_are_where_cudnn_and_the_device_can) {
  for (const auto& [half, name] : {std::pair(DType::bf16, "bf16"), std::pair(DType::f16, "f16")}) {
    open({});
    type = half;
    const std::string of = std::string(" ") + name;
    EXPECT_EQ(forward(), Names{"forward 7 nhwc" + of});
    EXPECT_EQ(backward_data(), Names{"data 1 nhwc" + of});
    EXPECT_EQ(backward_weights(), Names{"filter 1 nhwc" + of});
  }
}

TEST_F(ConvolutionsTest,
       half_types_become_float32_where_there_is_nothing_else_or_only_what_differs_from_run_to_run) {
  {
    const Environment refuses("MOTLEY_SIM_CUDNN_HALF", "0");
    type = DType::f16;
    EXPECT_EQ(forward(), Names{"forward 7 nhwc"});
    EXPECT_EQ(backward_data(), Names{"data 1 nhwc"});
    EXPECT_EQ(backward_weights(), Names{"filter 1 nhwc"});
  }
  const Environment old("MOTLEY_SIM_CAPABILITY", "70");
  open({});
  type = DType::bf16;
  EXPECT_EQ(forward(), Names{"forward 7 nhwc"});
  EXPECT_EQ(backward_data(9), Names{"data 0 nhwc"});
  open({});
  type = DType::f16;
  EXPECT_EQ(backward_data(9), Names{"data 0 nhwc f16"});
}

TEST_F(ConvolutionsTest, short_memory_takes_an_algorithm_that_needs_less_and_keeps_to_it) {
  const std::size_t bytes = backend->allocated_bytes();
  backend->set_memory_limit(bytes + y_view(3).bytes() * 3);
  EXPECT_EQ(forward(), Names{"forward 1 nhwc"});
  backend->set_memory_limit(bytes + (1 << 20));
  EXPECT_EQ(forward(), Names{"forward 1 nhwc"});
  EXPECT_EQ(forward(2), Names{"forward 1 nhwc"});
  EXPECT_EQ(backward_weights(), Names{"filter 1 nhwc"});
}

TEST_F(ConvolutionsTest, no_memory_at_all_can_be_tried_again_with_more) {
  const std::size_t bytes = backend->allocated_bytes();
  backend->set_memory_limit(bytes + 10);
  EXPECT_THROW(forward(), OutOfMemory);
  EXPECT_THROW(backward_data(), OutOfMemory);
  backend->set_memory_limit(bytes + (1 << 20));
  EXPECT_EQ(forward().size(), 1u);
  EXPECT_EQ(backward_data(), Names{"data 1 nhwc"});
}

TEST_F(ConvolutionsTest, the_choice_does_not_depend_on_memory_if_runs_must_be_the_same) {
  open({.deterministic = true});
  const std::size_t bytes = backend->allocated_bytes();
  backend->set_memory_limit(bytes + y_view(3).bytes() * 3);
  EXPECT_THROW(forward(), OutOfMemory);
  backend->set_memory_limit(bytes + (1 << 20));
  EXPECT_EQ(forward(), Names{"forward 7 nhwc"});
}

TEST_F(ConvolutionsTest, errors_name_the_call_the_status_and_the_shape) {
  sim::set_fault("0:cudnnConvolutionForward:1:" + std::to_string(CUDNN_STATUS_EXECUTION_FAILED));
  try {
    forward();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    for (const char* part : {"cudnnConvolutionForward failed on GPU 0", "CUDNN_STATUS_EXECUTION_FAILED",
                             "3x3 convolution of [2, 9, 9, 4] to [2, 7, 7, 8]"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  sim::set_fault("0:cudnnCreate:1:" + std::to_string(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED));
  open({});
  EXPECT_THROW(forward(), OutOfMemory);
}

// ----------------------------------------------------------------------------------------------------------

class SimCudnnTest : public testing::Test {
 protected:
  SimCudnnTest() {
    cudnnCreate(&handle);
    cudnnSetStream(handle, stream);
    cudnnCreateTensorDescriptor(&x_desc);
    cudnnCreateTensorDescriptor(&y_desc);
    cudnnCreateFilterDescriptor(&w_desc);
    cudnnCreateConvolutionDescriptor(&conv);
    cudnnSetTensor4dDescriptor(x_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 2, 3, 3);
    cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 2, 2);
    cudnnSetFilter4dDescriptor(w_desc, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, 1, 2, 2, 2);
    cudnnSetConvolution2dDescriptor(conv, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    cudnnSetConvolutionMathType(conv, CUDNN_FMA_MATH);
  }
  ~SimCudnnTest() override {
    cudnnDestroyConvolutionDescriptor(conv);
    cudnnDestroyFilterDescriptor(w_desc);
    cudnnDestroyTensorDescriptor(y_desc);
    cudnnDestroyTensorDescriptor(x_desc);
    cudnnDestroy(handle);
  }

  cudnnStatus_t run(float beta = 0) { return run(&one, &beta, x.data(), nullptr, 0, algorithm); }
  cudnnStatus_t run(const void* alpha, const void* beta, const float* from, void* work, std::size_t bytes,
                    cudnnConvolutionFwdAlgo_t how) {
    return cudnnConvolutionForward(handle, alpha, x_desc, from, w_desc, w.data(), conv, how, work, bytes,
                                   beta, y_desc, y.data());
  }

  static constexpr float one = 1, zero = 0;
  static constexpr auto algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM;
  const cuda::Stream stream;
  const DeviceArray<float> x{std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}};
  const DeviceArray<float> w{std::vector<float>{1, 2, 4, 8, 0, 0, 0, 0.5f + 1.0f / 8192}}, y{4};
  cudnnHandle_t handle = nullptr;
  cudnnTensorDescriptor_t x_desc = nullptr, y_desc = nullptr;
  cudnnFilterDescriptor_t w_desc = nullptr;
  cudnnConvolutionDescriptor_t conv = nullptr;
};

TEST_F(SimCudnnTest, convolves_and_scales_what_was_there) {
  const float rest = 0.5f + 1.0f / 8192;
  const std::vector<float> want{61 + rest, 76 + rest, 106 + rest, 121 + rest};
  EXPECT_EQ(run(), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(y.values(stream), want);
  EXPECT_EQ(run(2), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(y.values(stream)[3], 3 * want[3]);
}

TEST_F(SimCudnnTest, rounds_to_tf32_unless_told_not_to) {
  cudnnSetConvolutionMathType(conv, CUDNN_DEFAULT_MATH);
  EXPECT_EQ(run(), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(y.values(stream)[0], 61.5f);
}

TEST_F(SimCudnnTest, half_types_are_read_widened_and_the_sum_is_rounded_once) {
  cudnnSetTensor4dDescriptor(x_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_BFLOAT16, 1, 2, 3, 3);
  cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_BFLOAT16, 1, 1, 2, 2);
  cudnnSetFilter4dDescriptor(w_desc, CUDNN_DATA_BFLOAT16, CUDNN_TENSOR_NCHW, 1, 2, 2, 2);
  cudnnSetConvolutionMathType(conv, CUDNN_TENSOR_OP_MATH);
  const auto bf16 = [](std::initializer_list<float> values) {
    std::vector<Bf16> all;
    for (const float value : values) all.push_back(from_float<Bf16>(value));
    all.resize(24);
    return all;
  };
  const DeviceArray<Bf16> half_x{bf16({1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1})},
      half_w{bf16({1, 2, 4, 8, 0, 0, 0, 0.75f})}, half_y{8};
  const float zero_scale = 0;
  ASSERT_EQ(cudnnConvolutionForward(handle, &one, x_desc, half_x.data(), w_desc, half_w.data(), conv,
                                    algorithm, nullptr, 0, &zero_scale, y_desc, half_y.data()),
            CUDNN_STATUS_SUCCESS);
  std::vector<float> got;
  for (const Bf16 value : half_y.values(stream)) got.push_back(to_float(value));
  got.resize(4);
  // 61.75, 76.75, 106.75 and 121.75 in 8 bits, ties to even.
  EXPECT_EQ(got, (std::vector<float>{61.75f, 77, 107, 122}));
}

TEST_F(SimCudnnTest, descriptors_must_fit_each_other) {
  cudnnSetConvolutionGroupCount(conv, 2);
  expect_violation([&] { run(); }, {"cudnnConvolutionForward", "2 channels of x are not 2 groups of 2"});
  cudnnSetConvolutionGroupCount(conv, 1);
  cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 1, 2, 3);
  expect_violation([&] { run(); }, {"1, 1, 2, 2"});
  cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, 1, 2, 2);
  expect_violation([&] { run(); }, {"differ in their format"});
  cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_HALF, 1, 1, 2, 2);
  expect_violation([&] { run(); }, {"differ in their type"});
  expect_violation(
      [&] { cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NCHW, CUDNN_DATA_DOUBLE, 1, 1, 2, 2); },
      {"only float32, float16 and bfloat16"});
  EXPECT_EQ(cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 0, 1, 2, 2),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(cudnnSetTensor4dDescriptor(y_desc, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1 << 16, 1 << 15, 1, 1),
            CUDNN_STATUS_NOT_SUPPORTED);
}

TEST_F(SimCudnnTest, memory_must_be_what_it_should_be) {
  expect_violation([&] { run(x.data(), &zero, x.data(), nullptr, 0, algorithm); }, {"host memory"});
  expect_violation([&] { run(&one, &zero, x.data() + 1, nullptr, 0, algorithm); }, {"multiple of 16"});
  expect_violation([&] { run(&one, &zero, x.data() + 4, nullptr, 0, algorithm); }, {"needs 72 bytes"});
  const std::vector<float> host(20);
  expect_violation([&] { run(&one, &zero, host.data(), nullptr, 0, algorithm); }, {"not device memory"});
  expect_violation([&] { run(&one, &zero, y.data(), nullptr, 0, algorithm); }, {"needs 72 bytes"});

  constexpr auto with_workspace = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  std::size_t bytes = 0;
  ASSERT_EQ(
      cudnnGetConvolutionForwardWorkspaceSize(handle, x_desc, w_desc, conv, y_desc, with_workspace, &bytes),
      CUDNN_STATUS_SUCCESS);
  const DeviceArray<char> work(bytes);
  expect_violation([&] { run(&one, &zero, x.data(), work.data(), bytes - 1, with_workspace); },
                   {"the workspace has"});
  expect_violation([&] { run(&one, &zero, x.data(), nullptr, bytes, with_workspace); }, {"workSpace"});
  EXPECT_EQ(run(&one, &zero, x.data(), work.data(), bytes, with_workspace), CUDNN_STATUS_SUCCESS);
  MOTLEY_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace
}  // namespace motley::test
