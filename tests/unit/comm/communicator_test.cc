#include "comm/communicator.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/mpi.h"

namespace motley::comm {
namespace {

// Every test runs with whole messages and with messages split into pieces of 16 bytes.
class CommunicatorTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Communicator world{MPI_COMM_WORLD, 60, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(whole_and_split, CommunicatorTest,
                         ::testing::Values(Communicator::max_message_bytes, std::size_t{16}),
                         [](const auto& test) { return test.param == 16 ? "split" : "whole"; });

// What rank r contributes: the same on every rank, another for every r.
std::vector<std::uint64_t> part_of(int rank) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<std::uint64_t> part(rank % 3 == 1 ? 0 : random() % 100);
  for (auto& value : part) value = random();
  return part;
}

std::string text_of(int rank) {
  const auto part = part_of(rank);
  return {reinterpret_cast<const char*>(part.data()), 8 * part.size() - (part.empty() ? 0 : 3)};
}

TEST_P(CommunicatorTest, knows_rank_size_and_host) {
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(world.rank(), rank);
  EXPECT_EQ(world.size(), size);
  EXPECT_FALSE(world.host().empty());
}

TEST_P(CommunicatorTest, broadcast_brings_the_roots_bytes_to_every_rank) {
  for (int root = 0; root < world.size(); ++root) {
    std::vector<int> values(1001);
    if (world.rank() == root) std::iota(values.begin(), values.end(), root);
    world.broadcast(values.data(), values.size() * sizeof(int), root, "a test");
    for (int i = 0; i < 1001; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], root + i);
  }
}

TEST_P(CommunicatorTest, broadcast_of_a_number_ignores_what_others_pass) {
  for (int root = 0; root < world.size(); ++root) {
    const double mine = world.rank() == root ? 0.1 + root : -1;
    EXPECT_EQ(world.broadcast(mine, root, "a test"), 0.1 + root);
  }
}

TEST_P(CommunicatorTest, broadcast_of_text_may_be_empty_and_ignores_what_others_pass) {
  for (int root = 0; root < world.size(); ++root) {
    const std::string mine = world.rank() == root ? text_of(root) : "not this";
    EXPECT_EQ(world.broadcast(mine, root, "a test"), text_of(root));
    EXPECT_EQ(world.broadcast(world.rank() == root ? "" : "not this", root, "a test"), "");
  }
}

TEST_P(CommunicatorTest, reductions_give_sum_and_maximum_on_every_rank) {
  std::vector<double> sums(77), largest(77);
  for (int i = 0; i < 77; ++i) {
    sums[static_cast<std::size_t>(i)] = world.rank() * 1000 + i;
    largest[static_cast<std::size_t>(i)] = (world.rank() * 7 + i) % 5 - 10;
  }
  world.all_reduce_sum(sums, "a test");
  world.all_reduce_max(largest, "a test");
  for (int i = 0; i < 77; ++i) {
    double sum = 0, maximum = -100;
    for (int rank = 0; rank < world.size(); ++rank) {
      sum += rank * 1000 + i;
      maximum = std::max(maximum, (rank * 7 + i) % 5 - 10.0);
    }
    EXPECT_EQ(sums[static_cast<std::size_t>(i)], sum);
    EXPECT_EQ(largest[static_cast<std::size_t>(i)], maximum);
  }
  world.all_reduce_sum({}, "a test");
}

TEST_P(CommunicatorTest, all_gather_is_in_rank_order) {
  for (const std::size_t n : {0, 1, 5, 100}) {
    std::vector<double> mine(n);
    for (std::size_t i = 0; i < n; ++i) mine[i] = world.rank() * 1000.0 + static_cast<double>(i);
    const auto all = world.all_gather(mine, "a test");
    ASSERT_EQ(all.size(), n * static_cast<std::size_t>(world.size()));
    for (std::size_t k = 0; k < all.size(); ++k) {
      ASSERT_EQ(all[k], static_cast<double>(k / n) * 1000.0 + static_cast<double>(k % n));
    }
  }
}

TEST_P(CommunicatorTest, scatter_gives_each_rank_its_part_also_an_empty_one) {
  for (int root = 0; root < world.size(); ++root) {
    std::vector<std::vector<std::uint64_t>> parts;
    if (world.rank() == root) {
      for (int rank = 0; rank < world.size(); ++rank) parts.push_back(part_of(rank));
    }
    EXPECT_EQ(world.scatter(parts, root, "a test"), part_of(world.rank()));
    for (auto& part : parts) part.clear();
    EXPECT_TRUE(world.scatter(parts, root, "a test").empty());
  }
}

TEST_P(CommunicatorTest, barrier_lets_nobody_through_before_the_last_has_come) {
  using Clock = std::chrono::steady_clock;  // one clock for all ranks of a host
  for (int last = 0; last < world.size(); ++last) {
    if (world.rank() == last) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    double came = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    world.barrier("a test");
    const double left = std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
    world.all_reduce_max({&came, 1}, "a test");
    EXPECT_GE(left, came);
  }
}

TEST_P(CommunicatorTest, threads_with_communicators_of_their_own_do_not_mix_messages) {
  const Communicator other(world.handle(), 60);
  std::thread thread([&] {
    for (int round = 0; round < 200; ++round) {
      double value = 1;
      other.all_reduce_sum({&value, 1}, "a test");
      ASSERT_EQ(value, world.size());
    }
  });
  for (int round = 0; round < 200; ++round) {
    double value = 1000;
    world.all_reduce_sum({&value, 1}, "a test");
    ASSERT_EQ(value, 1000.0 * world.size());
  }
  thread.join();
}

TEST(CheckMpi, names_the_call_and_what_mpi_said) {
  try {
    const int no_such_rank = 1'000'000;
    MOTLEY_MPI(MPI_Send(nullptr, 0, MPI_BYTE, no_such_rank, 0, MPI_COMM_WORLD));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::communication);
    const std::string sentence = error.what();
    EXPECT_EQ(sentence.rfind("MPI_Send failed: ", 0), 0u) << sentence;
    EXPECT_NE(sentence.find("MPI_ERR_RANK"), std::string::npos) << sentence;
    EXPECT_NE(sentence.find("no_such_rank"), std::string::npos) << sentence;
  }
}

TEST(ThreadsPerRank, divides_the_processors_among_the_ranks_that_share_them) {
  const Communicator world(MPI_COMM_WORLD, 60);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const char* const old = std::getenv("OMP_NUM_THREADS");
  const std::string saved = old ? old : "";

  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads_per_rank(processor_share(world)), std::max(1, CPU_COUNT(&before) / world.size()));
  EXPECT_EQ(processor_share(world).host_ranks, world.size());

  // Rank 0 moves to a processor of its own: the others have theirs among them, and it has its one.
  if (world.size() > 1 && CPU_COUNT(&before) > 1) {
    if (world.rank() == 0) {
      int first = 0;
      while (!CPU_ISSET(first, &before)) ++first;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(first, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    }
    const int others = std::max(1, CPU_COUNT(&before) / (world.size() - 1));
    EXPECT_EQ(threads_per_rank(processor_share(world)), world.rank() == 0 ? 1 : others);
    EXPECT_EQ(processor_share(world).host_ranks, world.size()) << "memory is shared whatever the processors";
    sched_setaffinity(0, sizeof before, &before);
  }

  setenv("OMP_NUM_THREADS", "7,2", 1);
  EXPECT_EQ(threads_per_rank(processor_share(world)), 7);
  setenv("OMP_NUM_THREADS", "nonsense", 1);
  EXPECT_EQ(threads_per_rank(processor_share(world)), std::max(1, CPU_COUNT(&before) / world.size()));
  old ? setenv("OMP_NUM_THREADS", saved.c_str(), 1) : unsetenv("OMP_NUM_THREADS");
}

TEST(ProcessorShareTest, cpu_ranks_divide_what_ranks_with_gpus_leave) {
  const Communicator world(MPI_COMM_WORLD, 60);
  const ProcessorShare share = processor_share(world, world.rank() == 0);
  EXPECT_EQ(share.gpu_ranks, 1);
  EXPECT_EQ(share.host_gpu_ranks, 1);

  // 16 processors, two GPU ranks and three CPU ranks: 14 processors for three, four each.
  const ProcessorShare mixed{16, 5, 5, 2, 2};
  const char* const old = std::getenv("OMP_NUM_THREADS");
  const std::string saved = old ? old : "";
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads_per_rank(mixed), 4);
  EXPECT_DOUBLE_EQ(crowding(mixed, 4), 14.0 / 16);
  EXPECT_EQ(threads_per_rank({2, 4, 4, 3, 3}), 1) << "never none";
  if (old) setenv("OMP_NUM_THREADS", saved.c_str(), 1);
  constexpr std::size_t gib = std::size_t{1} << 30;
  EXPECT_EQ(memory_per_cpu_rank(128 * gib, mixed), 40 * gib);
  EXPECT_EQ(memory_per_cpu_rank(10 * gib, mixed), 2 * gib) << "equal parts, where that is less";
  EXPECT_EQ(memory_per_cpu_rank(12 * gib, {16, 3, 3, 0, 0}), 4 * gib);
}

}  // namespace
}  // namespace motley::comm
