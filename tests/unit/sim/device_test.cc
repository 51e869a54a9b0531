// The stand-in of the CUDA runtime: memory, streams that are late, events, errors.
#include "kernels/cuda/device.cuh"

#include <thread>

#include "device_array.h"
#include "environment.h"

namespace motley::test {
namespace {

__global__ void fill_kernel(int* x, int value) {
  x[threadIdx.x] = value;
}
__global__ void copy_kernel(const int* x, int* y) {
  y[threadIdx.x] = x[threadIdx.x];
}

void fill(const DeviceArray<int>& x, int value, cudaStream_t stream) {
  cuda::launch("fill", fill_kernel, {dim3(1), dim3(static_cast<unsigned>(x.bytes() / sizeof(int)))}, stream,
               x.data(), value);
}
void copy(const DeviceArray<int>& x, const DeviceArray<int>& y, cudaStream_t stream) {
  cuda::launch("copy", copy_kernel, {dim3(1), dim3(static_cast<unsigned>(x.bytes() / sizeof(int)))}, stream,
               x.data(), y.data());
}

class SimDeviceTest : public testing::Test {
 protected:
  void SetUp() override { sim::set_order(1); }
  void TearDown() override {
    sim::set_fault("");
    cudaSetDevice(0);
  }
};

// --- Memory -----------------------------------------------------------------------------------------------

TEST_F(SimDeviceTest, memory_is_aligned_like_that_of_a_gpu) {
  const DeviceArray<char> a(1), b(1000), c(3);
  for (const auto* x : {&a, &b, &c}) EXPECT_TRUE(cuda::aligned(x->data(), 256));
}

TEST_F(SimDeviceTest, the_host_cannot_touch_memory_of_the_device) {
  const DeviceArray<int> x(std::vector<int>{1, 2});
  volatile int* const pointer = x.data();
  EXPECT_DEATH(*pointer = 3, "");
  EXPECT_DEATH(static_cast<void>(*pointer), "");
  const cuda::Stream stream;
  EXPECT_EQ(x.values(stream), (std::vector<int>{1, 2}));
}

TEST_F(SimDeviceTest, memory_is_freed_once) {
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, 100), cudaSuccess);
  EXPECT_EQ(cudaFree(static_cast<char*>(pointer) + 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(SimDeviceTest, what_is_used_after_it_was_freed_is_refused) {
  void* pointer = nullptr;
  ASSERT_EQ(cudaMalloc(&pointer, 100), cudaSuccess);
  ASSERT_EQ(cudaFree(pointer), cudaSuccess);
  const cuda::Stream stream;
  expect_violation([&] { cudaMemsetAsync(pointer, 0, 1, stream); }, {"cudaMemsetAsync", "not device memory"});
}

TEST_F(SimDeviceTest, memory_has_an_end) {
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const std::string limit = std::to_string(total - free + 1000);
  const Environment memory("MOTLEY_SIM_MEMORY", limit.c_str());
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(free, 1000u);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 1001), cudaErrorMemoryAllocation);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  {
    const DeviceArray<char> most(900);
    EXPECT_EQ(cudaMalloc(&pointer, 101), cudaErrorMemoryAllocation);
    cudaGetLastError();
  }
  const DeviceArray<char> all(1000);
}

TEST_F(SimDeviceTest, memory_and_streams_of_another_device_are_refused) {
  const Environment gpus("MOTLEY_SIM_GPUS", "2");
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  cudaGetLastError();
  const DeviceArray<int> on_first(4);
  const cuda::Stream of_first;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  {
    const cuda::Stream of_second;
    expect_violation([&] { cudaMemsetAsync(on_first.data(), 0, 4, of_second); },
                     {"devPtr", "device 0, not 1"});
  }
  expect_violation([&] { fill(on_first, 1, of_first); }, {"stream of device 0 while device 1 is current"});
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(SimDeviceTest, copies_say_their_direction_and_stay_inside_an_allocation) {
  const DeviceArray<int> x(4);
  const cuda::Stream stream;
  std::vector<int> host(5);
  const auto copying = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return [=, &stream] { cudaMemcpyAsync(to, from, bytes, kind, stream); };
  };
  expect_violation(copying(x.data(), host.data(), 20, cudaMemcpyHostToDevice), {"dst needs 20 bytes"});
  expect_violation(copying(host.data(), x.data() + 1, 16, cudaMemcpyDeviceToHost), {"src needs 16 bytes"});
  expect_violation(copying(host.data(), host.data(), 4, cudaMemcpyHostToDevice),
                   {"dst is not device memory"});
  expect_violation(copying(x.data(), x.data(), 4, cudaMemcpyDeviceToHost), {"dst is device memory"});
}

// --- Streams ----------------------------------------------------------------------------------------------

TEST_F(SimDeviceTest, streams_are_late) {
  cuda::PinnedBuffer pinned(4 * sizeof(int));
  auto* const host = static_cast<int*>(pinned.data());
  std::vector<int> pageable{1, 2, 3, 4};
  std::copy_n(pageable.begin(), 4, host);
  const DeviceArray<int> x(4), y(4);
  const cuda::Stream stream;
  MOTLEY_CUDA(cudaMemcpyAsync(x.data(), host, x.bytes(), cudaMemcpyHostToDevice, stream));
  MOTLEY_CUDA(cudaMemcpyAsync(y.data(), pageable.data(), y.bytes(), cudaMemcpyHostToDevice, stream));
  host[1] = 20;      // the copy has not read it yet
  pageable[1] = 20;  // that of pageable memory has
  EXPECT_EQ(x.values(stream), (std::vector<int>{1, 20, 3, 4}));
  EXPECT_EQ(y.values(stream), (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(SimDeviceTest, copies_to_pinned_memory_are_late_too) {
  const DeviceArray<int> x(std::vector<int>{7});
  cuda::PinnedBuffer pinned(sizeof(int));
  auto* const host = static_cast<int*>(pinned.data());
  *host = 0;
  const cuda::Stream stream;
  MOTLEY_CUDA(cudaMemcpyAsync(host, x.data(), sizeof(int), cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(*host, 0);
  MOTLEY_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(*host, 7);
}

TEST_F(SimDeviceTest, a_stream_keeps_its_order_and_is_done_when_all_is_done) {
  for (std::uint64_t order = 0; order < 20; ++order) {
    sim::set_order(order);
    const DeviceArray<int> x(4), y(4);
    const cuda::Stream stream;
    for (int i = 0; i < 5; ++i) {
      fill(x, i, stream);
      copy(x, y, stream);
    }
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
    }
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
    EXPECT_EQ(y.values(stream), std::vector<int>(4, 4));
  }
}

TEST_F(SimDeviceTest, events_order_streams) {
  for (std::uint64_t order = 0; order < 30; ++order) {
    sim::set_order(order);
    const DeviceArray<int> x(std::vector<int>{1, 1}), y(std::vector<int>{0, 0});
    const cuda::Stream first, second;
    const cuda::Event written;
    fill(x, 5, first);
    MOTLEY_CUDA(cudaEventRecord(written, first));
    MOTLEY_CUDA(cudaStreamWaitEvent(second, written, 0));
    copy(x, y, second);
    EXPECT_EQ(y.values(second), (std::vector<int>{5, 5}));
  }
}

TEST_F(SimDeviceTest, a_missing_wait_between_streams_shows) {
  int wrong = 0;
  for (std::uint64_t order = 1; order < 30; ++order) {
    sim::set_order(order);
    const DeviceArray<int> x(std::vector<int>{1, 1}), y(std::vector<int>{0, 0});
    const cuda::Stream first, second;
    fill(x, 5, first);
    copy(x, y, second);
    if (y.values(second) != std::vector<int>{5, 5}) {
      ++wrong;
    } else {
      EXPECT_NE(order, 1u);  // as late as it can be: for sure
    }
  }
  EXPECT_GT(wrong, 1);
}

TEST_F(SimDeviceTest, a_wait_is_for_what_was_recorded_before_it) {
  const DeviceArray<int> x(std::vector<int>{1}), y(std::vector<int>{0});
  const cuda::Stream first, second;
  const cuda::Event event;
  MOTLEY_CUDA(cudaStreamWaitEvent(second, event, 0));  // never recorded: complete
  copy(x, y, second);
  EXPECT_EQ(y.values(second), std::vector<int>{1});
  MOTLEY_CUDA(cudaEventRecord(event, first));
  MOTLEY_CUDA(cudaStreamWaitEvent(second, event, 0));
  fill(x, 5, first);
  MOTLEY_CUDA(cudaEventRecord(event, first));
  copy(x, y, second);
  EXPECT_EQ(y.values(second), std::vector<int>{1});
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  MOTLEY_CUDA(cudaEventSynchronize(event));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  MOTLEY_CUDA(cudaDeviceSynchronize());
}

TEST_F(SimDeviceTest, streams_that_wait_for_each_other_are_found) {
  const cuda::Stream stream;
  const sim::Call hold("test");
  ASSERT_EQ(sim::enqueue(stream, "waits for ever", [] { return false; }), cudaSuccess);
  expect_violation([&] { cudaStreamSynchronize(stream); }, {"wait for each other"});
}

TEST_F(SimDeviceTest, events_tell_the_time_as_if_nothing_were_late) {
  const cuda::Stream stream;
  const cuda::Event from(cudaEventDefault), to(cudaEventDefault), untimed;
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorInvalidResourceHandle);
  MOTLEY_CUDA(cudaEventRecord(from, stream));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  MOTLEY_CUDA(cudaEventRecord(to, stream));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaErrorNotReady);
  MOTLEY_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, to), cudaSuccess);
  EXPECT_GE(milliseconds, 10);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, from, untimed), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_F(SimDeviceTest, nothing_is_left_when_all_was_freed) {
  const std::size_t before = sim::live_objects();
  {
    const DeviceArray<int> x(4);
    const cuda::Stream stream;
    const cuda::Event event;
    const cuda::PinnedBuffer pinned(100);
    EXPECT_EQ(sim::live_objects(), before + 4);
  }
  EXPECT_EQ(sim::live_objects(), before);
}

// --- Errors -----------------------------------------------------------------------------------------------

TEST_F(SimDeviceTest, the_call_that_is_to_fail_does_and_is_named) {
  sim::set_fault("0:cudaMalloc:2:" + std::to_string(cudaErrorMemoryAllocation));
  void *first = nullptr, *second = nullptr, *third = nullptr;
  EXPECT_EQ(cudaMalloc(&first, 8), cudaSuccess);
  EXPECT_THROW(MOTLEY_CUDA(cudaMalloc(&second, 8)), OutOfMemory);
  EXPECT_EQ(cudaMalloc(&third, 8), cudaSuccess);  // one can go on after this one
  EXPECT_EQ(cudaFree(first), cudaSuccess);
  EXPECT_EQ(cudaFree(third), cudaSuccess);
}

TEST_F(SimDeviceTest, faults_of_other_ranks_are_theirs) {
  sim::set_fault("1:cudaMalloc:1:" + std::to_string(cudaErrorMemoryAllocation));
  const DeviceArray<int> x(1);
}

TEST_F(SimDeviceTest, a_lost_device_stays_lost) {
  const cuda::Stream stream;
  sim::set_fault("0:cudaMemsetAsync:1:" + std::to_string(cudaErrorECCUncorrectable));
  const DeviceArray<int> x(1);
  try {
    MOTLEY_CUDA(cudaMemsetAsync(x.data(), 0, 4, stream));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_NE(std::string(error.what()).find("cudaMemsetAsync failed"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("cudaErrorECCUncorrectable"), std::string::npos) << error.what();
  }
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorECCUncorrectable);
  EXPECT_THROW(fill(x, 1, stream), Error);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);  // sticky
  sim::set_fault("");
}

TEST_F(SimDeviceTest, a_launch_that_fails_loses_the_device) {
  const cuda::Stream stream;
  const DeviceArray<int> x(1);
  sim::set_fault("0:cudaLaunchKernel:2:" + std::to_string(cudaErrorLaunchFailure));
  fill(x, 1, stream);
  EXPECT_THROW(fill(x, 2, stream), Error);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  sim::set_fault("");
}

}  // namespace
}  // namespace motley::test
