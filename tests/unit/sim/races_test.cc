// Planted races, each of which must be seen in every order of threads and streams, and what is no race.
#include "kernels/cuda/device.cuh"

#include <cublas_v2.h>

#include <memory>

#include "device_array.h"

namespace motley::test {
namespace {

constexpr std::uint64_t orders = 5;

// The kernel on one stream, in several orders. `threads` is of a block.
template <class Kernel>
void run(Kernel kernel, unsigned blocks, unsigned threads, std::size_t shared_bytes = 0) {
  DeviceArray<float> data(std::vector<float>(4096, 1.0f));
  const cuda::Stream stream;
  cuda::launch("planted", kernel, {blocks, threads, shared_bytes}, stream, data.data());
  MOTLEY_CUDA(cudaStreamSynchronize(stream));
}

template <class Kernel>
void expect_race(Kernel kernel, unsigned blocks, unsigned threads, const std::vector<std::string>& words,
                 std::size_t shared_bytes = 0) {
  for (std::uint64_t order = 0; order < orders; ++order) {
    sim::set_order(order);
    expect_violation([&] { run(kernel, blocks, threads, shared_bytes); }, words);
  }
}

template <class Kernel>
void expect_none(Kernel kernel, unsigned blocks, unsigned threads, std::size_t shared_bytes = 0) {
  for (std::uint64_t order = 0; order < orders; ++order) {
    sim::set_order(order);
    EXPECT_NO_THROW(run(kernel, blocks, threads, shared_bytes));
  }
}

// --- Within a block ---------------------------------------------------------------------------------------

// Each thread adds, as `x += v` does: the sum is right in every order in which fibers run.
__global__ void add_in_shared_kernel(float* x) {
  __shared__ cuda::Shared<float[1]> sum;
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  sum[0] += 1;
  __syncthreads();
  if (threadIdx.x == 0) x[0] = sum[0];
}
__global__ void add_in_dynamic_shared_kernel(float* x) {
  float* const sum = cuda::dynamic_shared<float>();
  if (threadIdx.x == 0) sum[0] = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) sum[0] += 1;
  __syncthreads();
  if (threadIdx.x == 0) x[0] = sum[0];
}
__global__ void add_in_global_kernel(float* x) {
  x[blockIdx.x] += 1;
}

TEST(SimRaces, sums_without_order_by_lanes_of_a_warp) {
  expect_race(add_in_shared_kernel, 1, 32,
              {"a race in shared memory", "planted", "same block", "races_test.cc:"});
  expect_race(add_in_global_kernel, 1, 2,
              {"a race in global memory", "planted", "same block", "races_test.cc:"});
}

TEST(SimRaces, sums_without_order_by_warps_of_a_block) {
  expect_race(add_in_dynamic_shared_kernel, 3, 64, {"shared memory", "same block"}, sizeof(float));
  expect_none(add_in_dynamic_shared_kernel, 1, 32, sizeof(float));
}

// Half-precision sums that share a word with their neighbours, and bytes.
template <class T, int apart>
__global__ void neighbours_kernel(float* x) {
  T* const all = reinterpret_cast<T*>(x);
  all[threadIdx.x / apart] = T{};
}

TEST(SimRaces, neighbours_of_any_size_do_not_race) {
  expect_none(neighbours_kernel<std::uint8_t, 1>, 1, 96);
  expect_none(neighbours_kernel<std::uint16_t, 1>, 1, 96);
  expect_none(neighbours_kernel<cuda::Pack<float, 4>, 1>, 1, 96);
  expect_race(neighbours_kernel<std::uint8_t, 2>, 1, 96, {"global memory"});
  expect_race(neighbours_kernel<cuda::Pack<float, 4>, 2>, 1, 96, {"global memory"});
}

// A tree of sums, whose last steps are within a warp.
enum class Last : std::uint8_t { barrier, warp_barrier, shuffle, nothing };
template <Last last>
__global__ void tree_kernel(float* x) {
  __shared__ cuda::Shared<float[128]> sums;
  const unsigned t = threadIdx.x;
  sums[t] = x[t];
  __syncthreads();
  for (unsigned half = 64; half > 16; half /= 2) {
    if (t < half) sums[t] += sums[t + half];
    __syncthreads();
  }
  if (t >= 32 && last != Last::barrier) return;
  for (unsigned half = 16; half > 0; half /= 2) {
    const float other = t < half ? sums[t + half] : 0;
    if (t < half) sums[t] += other;
    if constexpr (last == Last::barrier) __syncthreads();
    if constexpr (last == Last::warp_barrier) __syncwarp();
    if constexpr (last == Last::shuffle) static_cast<void>(__shfl_xor_sync(cuda::full_warp, other, 1));
  }
  if (t == 0) x[0] = sums[0];
}

TEST(SimRaces, lanes_of_a_warp_need_syncwarp_not_a_shuffle) {
  expect_none(tree_kernel<Last::barrier>, 1, 128);
  expect_none(tree_kernel<Last::warp_barrier>, 1, 128);
  expect_race(tree_kernel<Last::shuffle>, 1, 128, {"shared memory"});
  expect_race(tree_kernel<Last::nothing>, 1, 128, {"shared memory"});
}

template <bool both>
__global__ void halves_kernel(float* x) {
  __shared__ cuda::Shared<float[32]> values;
  const unsigned t = threadIdx.x;
  values[t] = x[t];
  if constexpr (both) {
    __syncwarp();
  } else {
    __syncwarp(t < 16 ? 0x0000ffffu : 0xffff0000u);
  }
  x[64 + t] = values[31 - t];
}

TEST(SimRaces, syncwarp_is_for_the_lanes_of_its_mask) {
  expect_none(halves_kernel<true>, 1, 32);
  expect_race(halves_kernel<false>, 1, 32, {"shared memory", "reads", "writes"});
}

// Reads by all, then a write by one that not all have come to know of.
template <bool with_barrier>
__global__ void overwrite_kernel(float* x) {
  __shared__ cuda::Shared<float[1]> value;
  if (threadIdx.x == 0) value[0] = x[0];
  __syncthreads();
  const float mine = value[0];
  if constexpr (with_barrier) __syncthreads();
  if (threadIdx.x == 0) value[0] = 2;
  x[1 + threadIdx.x] = mine;
}

TEST(SimRaces, what_others_read_may_be_written_after_a_barrier_only) {
  expect_none(overwrite_kernel<true>, 1, 96);
  expect_race(overwrite_kernel<false>, 1, 96, {"shared memory"});
  expect_race(overwrite_kernel<false>, 1, 32, {"shared memory"});
}

// --- Between blocks ---------------------------------------------------------------------------------------

__global__ void one_cell_kernel(float* x) {
  if (threadIdx.x == 0) x[0] = 1;
}
__global__ void next_block_kernel(float* x) {
  if (threadIdx.x == 0) x[blockIdx.x] = x[blockIdx.x + 1];
}
__global__ void own_cell_kernel(float* x) {
  x[blockIdx.x * blockDim.x + threadIdx.x] += 1;
}

TEST(SimRaces, blocks_have_no_order) {
  expect_race(one_cell_kernel, 2, 1, {"global memory", "another block"});
  expect_race(next_block_kernel, 3, 32, {"global memory", "another block"});
  expect_none(one_cell_kernel, 1, 32);
  expect_none(own_cell_kernel, 3, 96);
}

// --- Between streams --------------------------------------------------------------------------------------

enum class Order : std::uint8_t { none, event, host, event_of_before };

void two_streams(Order order) {
  DeviceArray<float> data(std::vector<float>(64, 1.0f));
  const cuda::Stream first, second;
  const cuda::Event event;
  if (order == Order::event_of_before) MOTLEY_CUDA(cudaEventRecord(event, first));
  cuda::launch("writer", own_cell_kernel, {1, 64}, first, data.data());
  if (order == Order::event) MOTLEY_CUDA(cudaEventRecord(event, first));
  if (order == Order::host) MOTLEY_CUDA(cudaStreamSynchronize(first));
  if (order != Order::none && order != Order::host) MOTLEY_CUDA(cudaStreamWaitEvent(second, event, 0));
  cuda::launch("reader", next_block_kernel, {1, 32}, second, data.data());
  MOTLEY_CUDA(cudaStreamSynchronize(second));
  MOTLEY_CUDA(cudaStreamSynchronize(first));
}

TEST(SimRaces, streams_need_an_event_or_the_host_between_them) {
  for (std::uint64_t seed = 0; seed < orders; ++seed) {
    sim::set_order(seed);
    EXPECT_NO_THROW(two_streams(Order::event));
    EXPECT_NO_THROW(two_streams(Order::host));
    for (const Order order : {Order::none, Order::event_of_before})
      expect_violation([&] { two_streams(order); },
                       {"global memory", "reader", "writer", "no event or stream"});
  }
}

// Two nodes of one graph, on branches that only the end brings together, or one after the other; and, `outside`, a reader
// on another stream while the graph runs.
void graph(bool branches, bool outside) {
  DeviceArray<float> data(std::vector<float>(64, 1.0f));
  const cuda::Stream stream, side;
  const cuda::Event fork, join;
  MOTLEY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  MOTLEY_CUDA(cudaMemsetAsync(data.data(), 0, data.bytes(), stream));
  MOTLEY_CUDA(cudaEventRecord(fork, stream));
  MOTLEY_CUDA(cudaStreamWaitEvent(side, fork, 0));
  cuda::launch("writer", own_cell_kernel, {1, 64}, stream, data.data());
  if (!branches) {
    MOTLEY_CUDA(cudaEventRecord(fork, stream));
    MOTLEY_CUDA(cudaStreamWaitEvent(side, fork, 0));
  }
  if (!outside) cuda::launch("reader", next_block_kernel, {1, 32}, side, data.data());
  MOTLEY_CUDA(cudaEventRecord(join, side));
  MOTLEY_CUDA(cudaStreamWaitEvent(stream, join, 0));
  cudaGraph_t captured = nullptr;
  MOTLEY_CUDA(cudaStreamEndCapture(stream, &captured));
  cudaGraphExec_t executable = nullptr;
  MOTLEY_CUDA(cudaGraphInstantiate(&executable, captured, 0));
  MOTLEY_CUDA(cudaGraphDestroy(captured));
  const std::unique_ptr<CUgraphExec_st, cudaError_t (*)(cudaGraphExec_t)> owned(executable,
                                                                                cudaGraphExecDestroy);
  // Once more on another stream: the launches follow each other.
  MOTLEY_CUDA(cudaGraphLaunch(executable, stream));
  MOTLEY_CUDA(cudaGraphLaunch(executable, side));
  if (outside) {
    const cuda::Stream other;
    cuda::launch("reader", next_block_kernel, {1, 32}, other, data.data());
    MOTLEY_CUDA(cudaStreamSynchronize(other));
  }
  MOTLEY_CUDA(cudaStreamSynchronize(stream));
  MOTLEY_CUDA(cudaStreamSynchronize(side));
}

TEST(SimRaces, nodes_of_a_graph_are_in_the_order_of_their_dependencies) {
  for (std::uint64_t seed = 0; seed < orders; ++seed) {
    sim::set_order(seed);
    EXPECT_NO_THROW(graph(false, false));
    expect_violation([&] { graph(true, false); },
                     {"global memory", "reader", "writer", "no event or stream"});
    expect_violation([&] { graph(false, true); }, {"global memory", "reader", "no event or stream"});
  }
}

TEST(SimRaces, copies_and_products_take_part) {
  for (std::uint64_t seed = 0; seed < orders; ++seed) {
    sim::set_order(seed);
    DeviceArray<float> a(std::vector<float>(16, 1.0f)), b(std::vector<float>(16, 1.0f)), c(16),
        workspace(4096);
    const cuda::Stream first, second;
    expect_violation(
        [&] {
          MOTLEY_CUDA(cudaMemsetAsync(a.data(), 0, a.bytes(), first));
          MOTLEY_CUDA(cudaMemcpyAsync(b.data(), a.data(), a.bytes(), cudaMemcpyDeviceToDevice, second));
          MOTLEY_CUDA(cudaStreamSynchronize(first));
          MOTLEY_CUDA(cudaStreamSynchronize(second));
        },
        {"cudaMemsetAsync", "cudaMemcpyAsync"});
    MOTLEY_CUDA(cudaDeviceSynchronize());
    cublasHandle_t handle = nullptr;
    ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasSetStream(handle, first), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasSetWorkspace(handle, workspace.data(), workspace.bytes()), CUBLAS_STATUS_SUCCESS);
    const DeviceArray<const void*> left(std::vector<const void*>{a.data()}),
        right(std::vector<const void*>{b.data()});
    const DeviceArray<void*> result(std::vector<void*>{c.data()});
    expect_violation(
        [&] {
          const float one = 1, zero = 0;
          ASSERT_EQ(cublasGemmBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, left.data(),
                                        CUDA_R_32F, 4, right.data(), CUDA_R_32F, 4, &zero, result.data(),
                                        CUDA_R_32F, 4, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                    CUBLAS_STATUS_SUCCESS);
          MOTLEY_CUDA(cudaMemsetAsync(b.data(), 0, b.bytes(), second));
          MOTLEY_CUDA(cudaStreamSynchronize(first));
          MOTLEY_CUDA(cudaStreamSynchronize(second));
        },
        {"global memory", "cudaMemsetAsync"});
    MOTLEY_CUDA(cudaDeviceSynchronize());
    ASSERT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
  }
}

TEST(SimRaces, memory_that_is_given_back_begins_anew) {
  sim::set_order(1);
  const cuda::Stream first, second;
  for (const cudaStream_t stream : {static_cast<cudaStream_t>(first), static_cast<cudaStream_t>(second)}) {
    DeviceArray<float> data(64);
    cuda::launch("writer", own_cell_kernel, {1, 64}, stream, data.data());
  }
  EXPECT_EQ(sim::live_objects(), 2u);
}

}  // namespace
}  // namespace motley::test
