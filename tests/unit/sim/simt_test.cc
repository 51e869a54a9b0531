// Kernels that are right, with every primitive, and kernels with planted mistakes, which must not stay
// unseen.
#include "kernels/cuda/device.cuh"

#include <cmath>
#include <set>

#include "device_array.h"

namespace motley::test {
namespace {

// --- Kernels that are right -------------------------------------------------------------------------------

// Where each thread is, in the order of x before y before z.
__global__ void places_kernel(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  out[block * threads + thread] = static_cast<int>(block * 1000 + thread);
}

// Inclusive sums over each block: shuffles within warps, shared memory between them.
__global__ void scan_kernel(const int* x, int* y) {
  __shared__ int totals[32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  // A partial warp names the lanes that it has.
  const int lanes = warp == warps - 1 ? static_cast<int>(blockDim.x) - 32 * warp : 32;
  const unsigned mask = lanes == 32 ? cuda::full_warp : (1u << lanes) - 1;
  const std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  int sum = x[at];
  for (unsigned step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(mask, sum, step);
    if (lane >= static_cast<int>(step)) sum += before;
  }
  if (lane == lanes - 1) totals[warp] = sum;
  __syncthreads();
  for (int w = 0; w < warp; ++w) sum += totals[w];
  y[at] = sum;
}

// Dynamic shared memory, a barrier in a loop, and doubles through a butterfly.
__global__ void tree_kernel(const double* x, double* block_sums, double* warp_sums) {
  auto* const values = cuda::dynamic_shared<double>();
  const unsigned t = threadIdx.x;
  values[t] = x[blockIdx.x * blockDim.x + t];
  double sum = values[t];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(cuda::full_warp, sum, lanes);
  warp_sums[blockIdx.x * blockDim.x + t] = sum;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) values[t] += values[t + half];
  }
  if (t == 0) block_sums[blockIdx.x] = values[0];
}

struct Votes {
  unsigned ballot;
  int any, all, none, from_lane_7;
};
__global__ void votes_kernel(Votes* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  Votes v{};
  v.ballot = __ballot_sync(cuda::full_warp, lane % 3 == 0);
  v.any = __any_sync(cuda::full_warp, lane == 5);
  v.all = __all_sync(cuda::full_warp, lane >= 0);
  v.none = __any_sync(cuda::full_warp, lane > 31);
  v.from_lane_7 = __shfl_sync(cuda::full_warp, 10 * lane, 7);
  out[threadIdx.x] = v;
}

// Two halves of a warp that go different ways, each with its own mask, and meet again.
__global__ void halves_kernel(int* out) {
  __shared__ int exchanged[32];
  const int lane = static_cast<int>(threadIdx.x);
  int value = lane;
  if (lane < 16) {
    value = __shfl_xor_sync(0x0000ffffu, value, 1);
  } else {
    value = __shfl_sync(0xffff0000u, value, 31);
  }
  exchanged[lane] = value;
  __syncwarp();
  out[lane] = exchanged[31 - lane];
}

// --- Kernels with a mistake -------------------------------------------------------------------------------

template <bool with_barrier>
__global__ void reverse_kernel(const float* x, float* y) {
  __shared__ float values[256];
  values[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  if constexpr (with_barrier) __syncthreads();
  y[blockIdx.x * blockDim.x + threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

// Every block but the first reads shared memory that it has not written.
__global__ void unwritten_kernel(float* y) {
  __shared__ cuda::Shared<float[32]> values;
  if (blockIdx.x == 0) values[threadIdx.x] = 1;
  y[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
}

// Reads what others still write one round later.
__global__ void one_barrier_of_two_kernel(const float* x, float* y, int rounds) {
  __shared__ float values[64];
  const unsigned t = threadIdx.x;
  float sum = 0;
  for (int r = 0; r < rounds; ++r) {
    values[t] = x[static_cast<unsigned>(r) * 64 + t];
    __syncthreads();
    sum += values[63 - t];
  }
  y[t] = sum;
}

// A warp that exchanges through shared memory as if its lanes advanced in step.
__global__ void implicit_warp_step_kernel(const float* x, float* y) {
  __shared__ float values[32];
  values[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = values[threadIdx.x ^ 1];
}

template <int apart>
__global__ void last_writer_kernel(int* out) {
  if (threadIdx.x % apart == 0) *out = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void write_behind_kernel(float* x, int elements, int behind) {
  if (threadIdx.x == 0) x[elements + behind] = 1;
}
__global__ void read_behind_kernel(float* x, int elements) {
  if (threadIdx.x == 0) x[0] = x[elements];
}
__global__ void read_behind_shared_kernel(float* x) {
  if (threadIdx.x == 0) x[0] = cuda::dynamic_shared<float>()[32];
}

__global__ void divergent_barrier_kernel() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void left_before_barrier_kernel() {
  if (threadIdx.x == 3) return;
  __syncthreads();
}
__global__ void shuffle_with_ended_lane_kernel() {
  if (threadIdx.x == 3) return;
  __shfl_xor_sync(cuda::full_warp, 1, 1);
}
__global__ void shuffle_at_two_lines_kernel() {
  if (threadIdx.x < 16) {
    __shfl_xor_sync(cuda::full_warp, 1, 1);
  } else {
    __shfl_xor_sync(cuda::full_warp, 1, 1);
  }
}
__global__ void shuffle_against_barrier_kernel() {
  if (threadIdx.x < 16) {
    __shfl_xor_sync(cuda::full_warp, 1, 1);
  } else {
    __syncthreads();
  }
}
__global__ void shuffle_without_itself_kernel() {
  __shfl_sync(0x0000ffffu, 1, 0);
}
__global__ void shuffle_from_outside_the_mask_kernel() {
  if (threadIdx.x < 16) __shfl_sync(0x0000ffffu, 1, 20);
}
__global__ void masks_that_differ_kernel() {
  __shfl_sync(threadIdx.x == 0 ? 0x00000003u : cuda::full_warp, 1, 0);
}
__global__ void misaligned_kernel(float* x) {
  cuda::store<4>(x + 1, cuda::load<4>(x));
}

// ----------------------------------------------------------------------------------------------------------

constexpr std::uint64_t orders = 20;

class SimtTest : public testing::Test {
 protected:
  template <class... Parameters, class... Arguments>
  void run(void (*kernel)(Parameters...), const cuda::Grid& grid, Arguments... arguments) {
    cuda::launch("test", kernel, grid, stream, arguments...);
    MOTLEY_CUDA(cudaStreamSynchronize(stream));
  }
  // A kernel without arguments.
  void expect_refused(void (*kernel)(), const std::vector<std::string>& parts, unsigned threads = 32) {
    for (std::uint64_t order = 1; order <= orders; ++order) {
      sim::set_order(order);
      expect_violation([&] { run(kernel, {dim3(1), dim3(threads)}); }, parts);
    }
    // The device goes on.
    const DeviceArray<int> out(8);
    run(places_kernel, {dim3(2), dim3(4)}, out.data());
    EXPECT_EQ(out.values(stream)[7], 1003);
  }
  // For each order, the result of a kernel.
  template <class T, class Run>
  std::set<std::vector<T>> results(const DeviceArray<T>& out, const Run& one) {
    std::set<std::vector<T>> all;
    for (std::uint64_t order = 1; order <= orders; ++order) {
      sim::set_order(order);
      one();
      all.insert(out.values(stream));
    }
    return all;
  }

  const cuda::Stream stream;
};

std::vector<float> counting(std::size_t count, float from = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = from + static_cast<float>(i);
  return values;
}

TEST_F(SimtTest, every_thread_runs_once_and_knows_where_it_is) {
  const DeviceArray<int> out(3 * 2 * 2 * 5 * 3 * 4);
  run(places_kernel, {dim3(3, 2, 2), dim3(5, 3, 4)}, out.data());
  const auto got = out.values(stream);
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i / 60 * 1000 + i % 60);
}

TEST_F(SimtTest, shuffles_and_shared_memory_give_sums_also_with_partial_warps) {
  for (const unsigned threads : {1u, 31u, 32u, 33u, 100u, 1024u}) {
    const unsigned blocks = 3;
    std::vector<int> x(blocks * threads);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i * i % 17);
    const DeviceArray<int> in(x), out(x.size());
    std::vector<int> want(x);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (i % threads > 0) want[i] += want[i - 1];
    const auto all = results(out, [&] {
      run(scan_kernel, {dim3(blocks), dim3(threads)}, in.data(), out.data());
    });
    EXPECT_EQ(all, std::set{want}) << threads;
  }
}

TEST_F(SimtTest, dynamic_shared_memory_and_barriers_in_a_loop_give_sums) {
  std::vector<double> x(2 * 128);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.5 * static_cast<double>(i);
  const DeviceArray<double> in(x), block_sums(2), warp_sums(x.size());
  const cuda::Grid grid{dim3(2), dim3(128), 128 * sizeof(double)};
  const auto all =
      results(block_sums, [&] { run(tree_kernel, grid, in.data(), block_sums.data(), warp_sums.data()); });
  EXPECT_EQ(all, (std::set<std::vector<double>>{{0.5 * 128 * 127 / 2, 0.5 * (256 * 255 - 128 * 127) / 2}}));
  const auto warps = warp_sums.values(stream);
  for (std::size_t i = 0; i < warps.size(); ++i)
    ASSERT_EQ(warps[i], 0.5 * static_cast<double>(32 * (i / 32 * 32) + 16 * 31));
}

TEST_F(SimtTest, votes_count_all_lanes) {
  const DeviceArray<Votes> out(64);
  run(votes_kernel, {dim3(1), dim3(64)}, out.data());
  for (const Votes& v : out.values(stream)) {
    EXPECT_EQ(v.ballot, 0b01001001001001001001001001001001u);
    EXPECT_EQ(v.any, 1);
    EXPECT_EQ(v.all, 1);
    EXPECT_EQ(v.none, 0);
    EXPECT_EQ(v.from_lane_7, 70);
  }
}

TEST_F(SimtTest, lanes_may_part_with_masks_of_their_own) {
  const DeviceArray<int> out(32);
  const auto all = results(out, [&] { run(halves_kernel, {dim3(1), dim3(32)}, out.data()); });
  std::vector<int> want(32);
  for (int lane = 0; lane < 32; ++lane) want[static_cast<std::size_t>(31 - lane)] = lane < 16 ? lane ^ 1 : 31;
  EXPECT_EQ(all, std::set{want});
}

TEST_F(SimtTest, a_missing_barrier_shows) {
  const DeviceArray<float> x(counting(4 * 64)), y(4 * 64);
  const cuda::Grid grid{dim3(4), dim3(64)};
  std::vector<float> want(4 * 64);
  for (std::size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(i / 64 * 64 + 63 - i % 64);
  EXPECT_EQ(results(y, [&] { run(reverse_kernel<true>, grid, x.data(), y.data()); }), std::set{want});
  const auto wrong = results(y, [&] { run(reverse_kernel<false>, grid, x.data(), y.data()); });
  EXPECT_FALSE(wrong.contains(want));
  EXPECT_GT(wrong.size(), 1u);
}

TEST_F(SimtTest, a_block_does_not_see_what_the_last_one_left_in_shared_memory) {
  const DeviceArray<float> y(4 * 32);
  for (std::uint64_t order = 1; order <= orders; ++order) {
    sim::set_order(order);
    run(unwritten_kernel, {dim3(4), dim3(32)}, y.data());
    const std::vector<float> got = y.values(stream);
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (i < 32) {
        EXPECT_EQ(got[i], 1.0f);
      } else {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      }
    }
  }
}

TEST_F(SimtTest, a_missing_second_barrier_of_a_loop_shows) {
  constexpr int rounds = 5;
  const DeviceArray<float> x(counting(rounds * 64)), y(64);
  std::vector<float> want(64);
  for (std::size_t t = 0; t < 64; ++t)
    for (std::size_t r = 0; r < rounds; ++r) want[t] += static_cast<float>(r * 64 + 63 - t);
  const auto got = results(y, [&] {
    run(one_barrier_of_two_kernel, {dim3(1), dim3(64)}, x.data(), y.data(), rounds);
  });
  EXPECT_FALSE(got.contains(want));
}

TEST_F(SimtTest, lanes_of_a_warp_do_not_advance_in_step) {
  const DeviceArray<float> y(32);
  bool shows = false;
  for (std::uint64_t order = 1; order <= orders; ++order) {
    sim::set_order(order);
    // Other values each time: what the last run left in shared memory would look right.
    const auto values = counting(32, static_cast<float>(100 * order));
    const DeviceArray<float> x(values);
    run(implicit_warp_step_kernel, {dim3(1), dim3(32)}, x.data(), y.data());
    const auto got = y.values(stream);
    for (std::size_t i = 0; i < 32; ++i) shows = shows || got[i] != values[i ^ 1];
  }
  EXPECT_TRUE(shows);
}

TEST_F(SimtTest, a_race_of_threads_gives_results_that_differ) {
  const DeviceArray<int> out(1);
  const auto of_lanes = results(out, [&] { run(last_writer_kernel<1>, {dim3(1), dim3(32)}, out.data()); });
  EXPECT_GT(of_lanes.size(), 1u);
  const auto of_warps = results(out, [&] { run(last_writer_kernel<32>, {dim3(1), dim3(256)}, out.data()); });
  EXPECT_GT(of_warps.size(), 1u);
  const auto of_blocks = results(out, [&] { run(last_writer_kernel<32>, {dim3(8), dim3(32)}, out.data()); });
  EXPECT_GT(of_blocks.size(), 1u);
}

TEST_F(SimtTest, a_write_behind_an_allocation_is_seen) {
  for (const int behind : {0, 1, 100}) {
    const DeviceArray<float> x(13);
    const auto write = [&] { run(write_behind_kernel, {dim3(1), dim3(32)}, x.data(), 13, behind); };
    if (address_sanitizer) {
      EXPECT_DEATH(write(), "use-after-poison");
    } else {
      expect_violation(write,
                       {"written " + std::to_string(4 * behind) + " bytes behind", "of 52 bytes", "test"});
    }
  }
}

TEST_F(SimtTest, a_read_behind_an_allocation_is_seen_by_address_sanitizer) {
  if (!address_sanitizer) GTEST_SKIP() << "built without AddressSanitizer";
  const DeviceArray<float> x(13);
  EXPECT_DEATH(run(read_behind_kernel, {dim3(1), dim3(32)}, x.data(), 13), "use-after-poison");
  const cuda::Grid grid{dim3(1), dim3(32), 32 * sizeof(float)};
  EXPECT_DEATH(run(read_behind_shared_kernel, grid, x.data()), "heap-buffer-overflow");
}

TEST_F(SimtTest, memory_that_nobody_wrote_is_not_a_number) {
  const DeviceArray<float> x(13);
  for (const float value : x.values(stream)) EXPECT_TRUE(std::isnan(value));
  run(
      +[](float* out) { out[threadIdx.x] = cuda::dynamic_shared<float>()[threadIdx.x]; },
      {dim3(1), dim3(8), 32}, x.data());
  for (const float value : x.values(stream)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(SimtTest, a_divergent_barrier_is_refused) {
  expect_refused(divergent_barrier_kernel,
                 {"barrier at simt_test.cc:", "while others wait at simt_test.cc:"});
}

TEST_F(SimtTest, a_barrier_that_a_thread_left_before_is_refused) {
  expect_refused(left_before_barrier_kernel, {"thread (3, 0, 0)", "has ended without the barrier"}, 64);
}

TEST_F(SimtTest, an_exchange_with_lanes_that_cannot_come_is_refused) {
  expect_refused(shuffle_with_ended_lane_kernel, {"for lane 3, which has ended"});
  expect_refused(shuffle_at_two_lines_kernel, {"exchanges at simt_test.cc:", "while lane"});
  expect_refused(shuffle_against_barrier_kernel, {"which waits at a barrier"});
  expect_refused(shuffle_without_itself_kernel, {"whose mask leaves it out"});
  expect_refused(shuffle_from_outside_the_mask_kernel, {"from lane 20, which takes no part"});
  expect_refused(masks_that_differ_kernel, {"waits for ever"});
  expect_refused(shuffle_with_ended_lane_kernel, {"lanes that the block does not have"}, 1);
}

TEST_F(SimtTest, wide_accesses_must_be_aligned) {
  const DeviceArray<float> x(8);
  expect_violation(
      [&] {
        run(misaligned_kernel, {dim3(1), dim3(1)}, x.data());
      },
      {"store", "multiple of their size"});
}

TEST_F(SimtTest, launches_beyond_the_limits_are_refused) {
  const auto status = [&](const sim::Grid& grid) {
    return sim::launch(
        grid, [] {}, stream);
  };
  EXPECT_EQ(status({"test", dim3(1), dim3(1025)}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({"test", dim3(1), dim3(32, 33)}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({"test", dim3(1, 65536), dim3(1)}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({"test", dim3(0), dim3(1)}), cudaErrorInvalidConfiguration);
  EXPECT_EQ(status({"test", dim3(1), dim3(1), 48 * 1024 + 1}), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // which the launch has asked for
  EXPECT_EQ(status({"test", dim3(1), dim3(1), 48 * 1024}), cudaSuccess);
}

}  // namespace
}  // namespace motley::test
