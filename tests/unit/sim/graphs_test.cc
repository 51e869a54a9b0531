// Stream capture and graphs of the simulated device: what they do, and every way in which a program may use them wrongly.
#include "kernels/cuda/device.cuh"

#include <thread>

#include "device_array.h"

namespace motley::test {
namespace {

__global__ void fill_kernel(int* x, int value) {
  x[threadIdx.x] = value;
}
__global__ void add_kernel(const int* x, int* y) {
  y[threadIdx.x] += x[threadIdx.x];
}

using Array = DeviceArray<int>;

class SimGraphsTest : public testing::Test {
 protected:
  void SetUp() override { sim::set_order(1); }
  void TearDown() override {
    sim::set_fault("");
    cudaGetLastError();
  }

  static void fill(const Array& x, int value, cudaStream_t on) {
    cuda::launch("fill", fill_kernel, {dim3(1), dim3(static_cast<unsigned>(x.bytes() / sizeof(int)))}, on,
                 x.data(), value);
  }
  static void add(const Array& x, const Array& y, cudaStream_t on) {
    cuda::launch("add", add_kernel, {dim3(1), dim3(static_cast<unsigned>(x.bytes() / sizeof(int)))}, on,
                 x.data(), y.data());
  }

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) const {
    cudaGetLastError();  // of what was refused before
    ASSERT_EQ(cudaStreamBeginCapture(stream, mode), cudaSuccess);
  }
  cudaGraph_t end() const {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
  }
  // The capture has failed for this reason, and the stream can be used again.
  void expect_failed(cudaError_t why = cudaErrorStreamCaptureInvalidated) const {
    auto* graph = reinterpret_cast<cudaGraph_t>(1);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), why);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  cudaStreamCaptureStatus status() const {
    cudaStreamCaptureStatus status{};
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
  }
  static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    return executable;
  }
  static cudaGraphExecUpdateResult update(cudaGraphExec_t executable, cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo info{};
    const cudaError_t error = cudaGraphExecUpdate(executable, graph, &info);
    EXPECT_EQ(error,
              info.result == cudaGraphExecUpdateSuccess ? cudaSuccess : cudaErrorGraphExecUpdateFailure);
    return info.result;
  }

  cuda::Stream stream;
  Array x{std::vector<int>{1, 2}}, y{std::vector<int>{10, 20}};
};

// --- Captures and launches --------------------------------------------------------------------------------

TEST_F(SimGraphsTest, what_is_captured_runs_when_the_graph_is_launched_and_as_often) {
  begin();
  EXPECT_EQ(status(), cudaStreamCaptureStatusActive);
  fill(x, 3, stream);
  MOTLEY_CUDA(cudaMemsetAsync(y.data(), 0, sizeof(int), stream));
  add(x, y, stream);
  const cudaGraph_t graph = end();
  EXPECT_EQ(status(), cudaStreamCaptureStatusNone);
  std::size_t nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(nodes, 3u);
  EXPECT_EQ(x.values(stream), (std::vector<int>{1, 2}));
  const cudaGraphExec_t executable = instantiate(graph);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);  // the executable one has its own
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  fill(x, 7, stream);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);  // what was launched goes on
  EXPECT_EQ(y.values(stream), (std::vector<int>{3, 26}));
  EXPECT_EQ(x.values(stream), (std::vector<int>{7, 7}));
}

TEST_F(SimGraphsTest, an_update_is_for_later_launches_and_takes_other_arguments_kernels_and_grids) {
  begin();
  fill(x, 3, stream);
  const cudaGraph_t first = end();
  begin();
  add(x, y, stream);
  const cudaGraph_t second = end();
  const cudaGraphExec_t executable = instantiate(first);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(update(executable, second), cudaGraphExecUpdateSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(x.values(stream), (std::vector<int>{3, 3}));
  EXPECT_EQ(y.values(stream), (std::vector<int>{13, 23}));
  for (const cudaGraph_t graph : {first, second}) cudaGraphDestroy(graph);
  cudaGraphExecDestroy(executable);
}

TEST_F(SimGraphsTest, updates_that_change_more_than_arguments_are_refused_with_the_reason) {
  cuda::PinnedBuffer host(2 * sizeof(int));
  begin();
  fill(x, 3, stream);
  MOTLEY_CUDA(cudaMemcpyAsync(x.data(), host.data(), 4, cudaMemcpyHostToDevice, stream));
  const cudaGraph_t graph = end();
  const cudaGraphExec_t executable = instantiate(graph);
  const auto expect_refused = [&](cudaGraphExecUpdateResult why, const std::function<void()>& work) {
    begin();
    work();
    const cudaGraph_t other = end();
    EXPECT_EQ(update(executable, other), why);
    cudaGraphDestroy(other);
  };
  expect_refused(cudaGraphExecUpdateErrorTopologyChanged, [&] { fill(x, 3, stream); });
  expect_refused(cudaGraphExecUpdateErrorNodeTypeChanged, [&] {
    fill(x, 3, stream);
    fill(x, 3, stream);
  });
  expect_refused(cudaGraphExecUpdateErrorParametersChanged, [&] {
    fill(x, 3, stream);
    MOTLEY_CUDA(cudaMemcpyAsync(host.data(), x.data(), 4, cudaMemcpyDeviceToHost, stream));
  });
  const cuda::Stream other;
  const cuda::Event event;
  expect_refused(cudaGraphExecUpdateErrorTopologyChanged, [&] {
    MOTLEY_CUDA(cudaEventRecord(event, stream));
    MOTLEY_CUDA(cudaStreamWaitEvent(other, event, 0));
    fill(x, 3, other);
    MOTLEY_CUDA(cudaMemcpyAsync(y.data(), host.data(), 4, cudaMemcpyHostToDevice, stream));
    MOTLEY_CUDA(cudaEventRecord(event, other));
    MOTLEY_CUDA(cudaStreamWaitEvent(stream, event, 0));
  });
  EXPECT_EQ(update(executable, graph), cudaGraphExecUpdateSuccess);
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(executable);
}

// Two branches of one graph, in every order, and the launch of it on another stream before the first has run.
TEST_F(SimGraphsTest, branches_are_joined_and_launches_of_one_graph_follow_each_other) {
  const cuda::Stream side;
  const cuda::Event fork, join;
  begin();
  fill(x, 5, stream);
  MOTLEY_CUDA(cudaEventRecord(fork, stream));
  MOTLEY_CUDA(cudaStreamWaitEvent(side, fork, 0));
  add(x, y, side);
  MOTLEY_CUDA(cudaEventRecord(join, side));
  Array z(std::vector<int>{100, 100});
  add(x, z, stream);
  MOTLEY_CUDA(cudaStreamWaitEvent(stream, join, 0));
  fill(x, 0, stream);
  const cudaGraph_t graph = end();
  const cudaGraphExec_t executable = instantiate(graph);
  int sum = 10;
  for (std::uint64_t order = 0; order < 10; ++order) {
    sim::set_order(order);
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(executable, side), cudaSuccess);
    MOTLEY_CUDA(cudaStreamSynchronize(side));  // the launch on the other stream has run, then
    sum += 10;
    EXPECT_EQ(y.values(side)[0], sum);
    EXPECT_EQ(x.values(side)[0], 0);
  }
  EXPECT_EQ(z.values(stream)[0], 200);
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(executable);
}

TEST_F(SimGraphsTest, graphs_are_kept_until_they_are_destroyed_and_not_used_after) {
  const std::size_t before = sim::live_objects();
  begin();
  fill(x, 1, stream);
  const cudaGraph_t graph = end();
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_EQ(sim::live_objects(), before + 2);
  cudaGraphDestroy(graph);
  cudaGraphExecDestroy(executable);
  EXPECT_EQ(sim::live_objects(), before);
  cudaGraphExec_t other = nullptr;
  expect_violation([&] { cudaGraphInstantiate(&other, graph, 0); },
                   {"cudaGraphInstantiate", "does not exist"});
  expect_violation([&] { cudaGraphLaunch(executable, stream); }, {"cudaGraphLaunch", "does not exist"});
}

TEST_F(SimGraphsTest, an_error_that_nobody_asked_for_shows_in_the_next_launch) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  EXPECT_THROW(fill(x, 3, stream), Error);
  EXPECT_EQ(x.values(stream), (std::vector<int>{3, 3}));  // though it was made
  fill(x, 4, stream);
}

// --- What may not be done while a stream is captured --------------------------------------------------------

TEST_F(SimGraphsTest, waiting_for_a_captured_stream_is_refused_and_ends_what_was_captured) {
  const std::vector<std::function<cudaError_t()>> waits = {
      [&] { return cudaStreamSynchronize(stream); },
      [&] { return cudaStreamQuery(stream); },
      [&] { return cudaDeviceSynchronize(); },
      [&] {
        int host = 0;  // pageable: the call returns when the copy is done
        return cudaMemcpyAsync(&host, x.data(), sizeof(int), cudaMemcpyDeviceToHost, stream);
      },
      [&] { return cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed); },
  };
  for (const auto& wait : waits) {
    begin();
    fill(x, 3, stream);
    EXPECT_EQ(wait(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(status(), cudaStreamCaptureStatusInvalidated);
    EXPECT_THROW(fill(x, 4, stream), Error);
    EXPECT_EQ(cudaMemsetAsync(x.data(), 0, 4, stream), cudaErrorStreamCaptureInvalidated);
    expect_failed();
    EXPECT_EQ(x.values(stream), (std::vector<int>{1, 2}));
  }
}

TEST_F(SimGraphsTest, events_of_a_capture_are_asked_for_by_nobody) {
  const cuda::Event event(cudaEventDefault), before(cudaEventDefault);
  MOTLEY_CUDA(cudaEventRecord(before, stream));
  float milliseconds = 0;
  const std::vector<std::function<cudaError_t()>> questions = {
      [&] { return cudaEventQuery(event); },
      [&] { return cudaEventSynchronize(event); },
      [&] { return cudaEventElapsedTime(&milliseconds, before, event); },
  };
  for (const auto& ask : questions) {
    begin();
    fill(x, 3, stream);
    MOTLEY_CUDA(cudaEventRecord(event, stream));
    EXPECT_EQ(ask(), cudaErrorCapturedEvent);
    expect_failed();
  }
  MOTLEY_CUDA(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
}

TEST_F(SimGraphsTest, dependencies_do_not_cross_the_boundary_of_a_capture) {
  const cuda::Stream other;
  const cuda::Event event;
  MOTLEY_CUDA(cudaEventRecord(event, other));
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(stream, event, 0), cudaErrorStreamCaptureIsolation);
  expect_failed();
  begin();
  fill(x, 3, stream);
  MOTLEY_CUDA(cudaEventRecord(event, stream));
  cudaGraphDestroy(end());
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaErrorStreamCaptureIsolation);
  // Of two captures.
  begin();
  fill(x, 3, stream);
  MOTLEY_CUDA(cudaEventRecord(event, stream));
  ASSERT_EQ(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, event, 0), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureInvalidated);
  expect_failed();
}

TEST_F(SimGraphsTest, a_fork_that_is_not_joined_fails_and_is_not_ended_from_its_side) {
  const cuda::Stream side;
  const cuda::Event event;
  const auto fork = [&] {
    begin();
    fill(x, 3, stream);
    MOTLEY_CUDA(cudaEventRecord(event, stream));
    MOTLEY_CUDA(cudaStreamWaitEvent(side, event, 0));
    fill(y, 3, side);
  };
  fork();
  expect_failed(cudaErrorStreamCaptureUnjoined);
  MOTLEY_CUDA(cudaStreamSynchronize(side));  // which is free again, too
  fork();
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(side, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(cudaStreamSynchronize(side), cudaErrorStreamCaptureUnsupported);
  expect_failed();
}

TEST_F(SimGraphsTest, memory_is_taken_in_relaxed_captures_only) {
  void* memory = nullptr;
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    begin(mode);
    EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported);
    expect_failed();
  }
  begin();
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  cudaGraphDestroy(end());
}

TEST_F(SimGraphsTest, captures_of_a_thread_are_its_own_but_for_global_and_relaxed_ones) {
  void* memory = nullptr;
  const auto elsewhere = [](const std::function<void()>& work) { std::thread(work).join(); };
  begin(cudaStreamCaptureModeThreadLocal);
  elsewhere([&] { EXPECT_EQ(cudaMalloc(&memory, 8), cudaSuccess); });
  elsewhere([&] {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureWrongThread);
  });
  expect_failed();
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  elsewhere([&] { EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorStreamCaptureUnsupported); });
  expect_failed();
  begin();
  elsewhere([&] { cudaGraphDestroy(end()); });
}

TEST_F(SimGraphsTest, captures_begin_and_end_on_streams_that_have_them) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
}

TEST_F(SimGraphsTest, calls_that_are_to_fail_leave_the_stream_usable) {
  const auto clear = [&] { return cudaMemsetAsync(x.data(), 0, 4, stream); };
  sim::set_fault("0:cudaStreamEndCapture:1:901");
  begin();
  EXPECT_EQ(clear(), cudaSuccess);
  expect_failed();
  sim::set_fault("0:cudaLaunchKernel:1:900");
  begin();
  EXPECT_THROW(fill(x, 3, stream), Error);
  EXPECT_EQ(clear(), cudaErrorStreamCaptureInvalidated);
  expect_failed();
  sim::set_fault("0:cudaMemsetAsync:1:906");
  begin();
  EXPECT_EQ(clear(), cudaErrorStreamCaptureImplicit);
  expect_failed();
  EXPECT_EQ(x.values(stream), (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace motley::test
