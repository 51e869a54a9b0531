// Sums of gradients and of statistics over simulated GPUs, and over GPUs and CPUs together. Runs under mpirun.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/bfloat16.h"
#include "kernels/buffer.h"
#include "support/gpus.h"
#include "train/device.h"
#include "train/reducers.h"

namespace motley::train {
namespace {

std::vector<float> gradients_of(int rank, int step, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank + 1));
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> gradients(elements);
  for (float& gradient : gradients) gradient = value(random) * std::exp(4 * value(random));
  return gradients;
}

struct Case {
  std::string devices;  // a letter per rank, used in turn: g for a GPU, c for the CPU
  std::string wire;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.devices << " " << c.wire;
}

class NcclReducerTest : public testing::TestWithParam<Case> {
 protected:
  NcclReducerTest() {
    test::set_gpu_order(7 + static_cast<std::uint64_t>(world.rank()));
    const std::string& devices = GetParam().devices;
    const char device = devices[static_cast<std::size_t>(world.rank()) % devices.size()];
    backend = make_backend({.device = device == 'g' ? "cuda" : "cpu", .threads = 1}, world);
  }

  const comm::Communicator world{MPI_COMM_WORLD, 60};
  std::unique_ptr<Backend> backend;
};

TEST_P(NcclReducerTest, sums_every_bucket_of_every_step) {
  const bool narrow = GetParam().wire == "bf16";
  for (const std::size_t elements : {std::size_t{1}, std::size_t{16}, std::size_t{1000}, std::size_t{4099}}) {
    const auto reducer = make_reducer(world, *backend, elements, 1024, GetParam().wire);
    const Buffer memory(*backend, elements * sizeof(float));
    const View arena = memory.view(DType::f32, Shape{static_cast<std::int64_t>(elements)});
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> mine = gradients_of(world.rank(), step, elements);
      reducer->begin(arena);
      // The backward pass writes the arena from its start to its end, and says so in pieces.
      std::mt19937 random(static_cast<unsigned>(step * 31 + world.rank()));
      std::size_t done = 0;
      while (done < elements) {
        const std::size_t next = std::min(elements, done + 1 + random() % 700);
        backend->copy_to_device(static_cast<float*>(arena.data) + done, mine.data() + done,
                                (next - done) * sizeof(float));
        reducer->ready_up_to(next);
        done = next;
      }
      reducer->finish();
      std::vector<float> sums(elements);
      backend->copy_to_host(sums.data(), arena.data, arena.bytes());
      std::vector<double> expected(elements), size(elements);
      for (int rank = 0; rank < world.size(); ++rank) {
        const std::vector<float> theirs = gradients_of(rank, step, elements);
        for (std::size_t i = 0; i < elements; ++i) {
          const float sent = narrow && world.size() > 1 ? to_float(from_float<Bf16>(theirs[i])) : theirs[i];
          expected[i] += static_cast<double>(sent);
          size[i] += std::abs(static_cast<double>(sent));
        }
      }
      // Each addition rounds by at most half a unit in the last place of what is summed up to there.
      const double rounding = (narrow ? 0x1p-8 : 0x1p-23) * world.size();
      for (std::size_t i = 0; i < elements; ++i)
        ASSERT_NEAR(sums[i], expected[i], rounding * size[i] + 1e-30)
            << "element " << i << " of " << elements;
      const std::string bytes(reinterpret_cast<const char*>(sums.data()), 4 * elements);
      EXPECT_EQ(world.broadcast(bytes, 0, "a test"), bytes) << "the same bits on every rank";
    }
  }
}

TEST_P(NcclReducerTest, what_follows_on_the_device_sees_the_sums) {
  constexpr std::size_t elements = 3000;
  const auto reducer = make_reducer(world, *backend, elements, 2048, GetParam().wire);
  const Buffer memory(*backend, elements * sizeof(float)), norm(*backend, sizeof(double));
  const View arena = memory.view(DType::f32, Shape{elements});
  const std::vector<float> ones(elements, 1.0f);
  for (int step = 0; step < 3; ++step) {
    backend->copy_to_device(arena.data, ones.data(), arena.bytes());
    reducer->begin(arena);
    reducer->finish();
    backend->sum_squares(arena, norm.view(DType::f64, Shape{1}));
    double value = 0;
    backend->copy_to_host(&value, norm.data(), sizeof(value));
    EXPECT_EQ(value, static_cast<double>(elements) * world.size() * world.size());
  }
}

// Each sum is needed by what follows on the device, which puts another into it.
TEST_P(NcclReducerTest, small_sums_are_seen_by_what_follows_on_the_device) {
  constexpr std::int64_t most = 2048;
  const auto sum = make_small_sum(world, *backend, most);
  ASSERT_EQ(sum == nullptr, world.size() == 1);
  if (world.size() == 1) return;
  const Buffer memory(*backend, most * sizeof(double));
  for (const std::int64_t count : {std::int64_t{1}, std::int64_t{64}, most}) {
    const View values = memory.view(DType::f64, Shape{count});
    std::vector<double> mine(static_cast<std::size_t>(count)), sums(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = 1.0 / (1.0 + static_cast<double>(i)) + world.rank() * 1e-12;
    backend->copy_to_device(values.data, mine.data(), values.bytes());
    for (int again = 0; again < 3; ++again) sum->add_up(values, "a test");
    sum->wait("a test");
    backend->copy_to_host(sums.data(), values.data, values.bytes());
    const double ranks = world.size();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      // More than float32 could hold.
      const double once = ranks / (1.0 + static_cast<double>(i)) + 1e-12 * ranks * (ranks - 1) / 2;
      ASSERT_NEAR(sums[i], once * ranks * ranks, 1e-14 * sums[i]) << "value " << i << " of " << count;
    }
    const std::string bytes(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(double));
    EXPECT_EQ(world.broadcast(bytes, 0, "a test"), bytes) << "the same bits on every rank";
  }
}

INSTANTIATE_TEST_SUITE_P(, NcclReducerTest,
                         testing::Values(Case{"g", "fp32"}, Case{"gc", "fp32"}, Case{"cgg", "fp32"},
                                         Case{"ggc", "bf16"}, Case{"g", "bf16"}, Case{"c", "bf16"}),
                         [](const auto& one) { return one.param.devices + "_" + one.param.wire; });

}  // namespace
}  // namespace motley::train
