#include "comm/host_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace motley::comm {
namespace {

using std::chrono::milliseconds;

// The gradients of one rank in one step: large and small, of both signs, so that the order of summation
// shows.
std::vector<float> gradients_of(int rank, int step, std::size_t elements) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank + 1));
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> gradients(elements);
  for (auto& gradient : gradients) gradient = value(random) * std::exp(8 * value(random));
  return gradients;
}

class HostReducerTest : public ::testing::Test {
 protected:
  // Releases everything in a random number of random pieces, repeating and pausing at random; another order
  // of events on every rank and for every seed.
  void release_at_random(HostReducer& reducer, std::size_t elements, unsigned seed) {
    std::mt19937 random(seed * 100 + static_cast<unsigned>(world.rank()));
    std::vector<std::size_t> points(random() % 12);
    for (auto& point : points) point = random() % (elements + 1);
    if (random() % 2) points.insert(points.end(), {0, 0, elements, elements});
    std::sort(points.begin(), points.end());
    for (const std::size_t point : points) {
      reducer.ready_up_to(point);
      if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
  }

  // Whether every rank holds the same bits.
  bool same_on_every_rank(const std::vector<float>& values) {
    const std::string bytes(reinterpret_cast<const char*>(values.data()), 4 * values.size());
    const std::string of_root = world.broadcast(bytes, 0, "a test");
    return std::memcmp(of_root.data(), bytes.data(), bytes.size()) == 0;
  }

  const Communicator world{MPI_COMM_WORLD, 60};
};

TEST_F(HostReducerTest, buckets_are_cut_at_multiples_of_16_and_no_larger_than_asked) {
  std::mt19937 random(7);
  for (int round = 0; round < 30; ++round) {
    const std::size_t elements = random() % 5000, bucket_bytes = random() % 4000;
    const HostReducer reducer(world, elements, bucket_bytes);
    const auto ends = reducer.bucket_ends();
    ASSERT_EQ(reducer.buckets(), ends.size());
    ASSERT_EQ(ends.empty(), elements == 0);
    const std::size_t most = std::max<std::size_t>(bucket_bytes / 4, 16);
    std::size_t begin = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const std::size_t length = ends[i] - begin;
      const bool last = i + 1 == ends.size();
      ASSERT_TRUE(last || ends[i] % 16 == 0);
      ASSERT_LE(length, last ? most * 3 / 2 : most);
      ASSERT_TRUE(!last || i == 0 || 2 * length >= ends[0]) << "a tiny bucket was left behind";
      begin = ends[i];
    }
    ASSERT_EQ(begin, elements);
  }
}

TEST_F(HostReducerTest, sums_like_float64_whenever_the_buckets_become_ready) {
  std::mt19937 random(11);
  for (int round = 0; round < 25; ++round) {
    const std::size_t elements = round == 0 ? 0 : 1 + random() % 40000;
    const std::size_t bucket_bytes = 64 + random() % 30000;
    HostReducer reducer(world, elements, bucket_bytes);
    for (int step = 0; step < 3; ++step) {
      std::vector<double> sums(elements), magnitudes(elements);
      for (int rank = 0; rank < world.size(); ++rank) {
        const auto theirs = gradients_of(rank, step, elements);
        for (std::size_t i = 0; i < elements; ++i) {
          sums[i] += theirs[i];
          magnitudes[i] += std::fabs(theirs[i]);
        }
      }
      auto mine = gradients_of(world.rank(), step, elements);
      reducer.begin(view_of(mine));
      release_at_random(reducer, elements, static_cast<unsigned>(10 * round + step));
      reducer.finish();
      for (std::size_t i = 0; i < elements; ++i) {
        ASSERT_NEAR(mine[i], sums[i], magnitudes[i] * 1e-6) << "element " << i;
      }
      EXPECT_TRUE(same_on_every_rank(mine));
    }
  }
}

// Law 4. Lengths on both sides of the sizes at which MPI changes its method.
TEST_F(HostReducerTest, sums_have_the_same_bits_in_every_run) {
  for (const std::size_t elements : {5, 1000, 70000, 300000}) {
    std::vector<float> first;
    for (unsigned run = 0; run < 5; ++run) {
      HostReducer reducer(world, elements, 256 * 1024);
      auto mine = gradients_of(world.rank(), 1, elements);
      reducer.begin(view_of(mine));
      release_at_random(reducer, elements, run);
      reducer.finish();
      if (run == 0) first = mine;
      EXPECT_EQ(std::memcmp(first.data(), mine.data(), 4 * elements), 0)
          << elements << " elements, run " << run;
    }
    EXPECT_TRUE(same_on_every_rank(first));
  }
}

TEST_F(HostReducerTest, buckets_that_were_ready_early_are_summed_before_finish_is_called) {
  std::vector<float> gradients(1 << 19, 1.0F);
  HostReducer reducer(world, gradients.size(), 1 << 18);
  double blocked = 1;
  // The rest of the backward pass: as long as it takes on a machine that may be busy with something else.
  for (int rest_ms = 100; rest_ms <= 3200 && blocked > 0.02; rest_ms *= 2) {
    reducer.begin(view_of(gradients));
    world.barrier("a test");
    reducer.ready_up_to(gradients.size());
    std::this_thread::sleep_for(milliseconds(rest_ms));
    blocked = reducer.finish();
    world.all_reduce_max({&blocked, 1}, "a test");
  }
  EXPECT_LT(blocked, 0.02);
}

TEST_F(HostReducerTest, finish_blocks_for_the_slowest_rank_and_says_for_how_long) {
  if (world.size() == 1) GTEST_SKIP();
  const int slow = world.size() - 1;
  double least_blocked = 0;
  // On a busy machine the others may be late themselves: the slow one is slower every time.
  for (int late_ms = 100; late_ms <= 3200 && least_blocked < 0.05; late_ms *= 2) {
    std::vector<float> gradients(10000, static_cast<float>(world.rank()));
    HostReducer reducer(world, gradients.size(), 4096);
    reducer.begin(view_of(gradients));
    world.barrier("a test");
    if (world.rank() == slow) std::this_thread::sleep_for(milliseconds(late_ms));
    const double blocked = reducer.finish();
    double negative = world.rank() == slow ? -1e9 : -blocked;
    world.all_reduce_max({&negative, 1}, "a test");
    least_blocked = -negative;
    const float sum = static_cast<float>(world.size() * (world.size() - 1)) / 2;
    EXPECT_EQ(std::count(gradients.begin(), gradients.end(), sum), 10000);
  }
  EXPECT_GE(least_blocked, 0.05);
}

TEST_F(HostReducerTest, leaves_the_gradients_of_a_single_rank_alone_at_no_cost) {
  if (world.size() > 1) GTEST_SKIP();
  auto mine = gradients_of(0, 0, 1000);
  const auto before = mine;
  HostReducer reducer(world, mine.size(), 64);
  for (int step = 0; step < 3; ++step) {
    reducer.begin(view_of(mine));
    reducer.ready_up_to(500);
    EXPECT_EQ(reducer.finish(), 0);
  }
  EXPECT_EQ(mine, before);
}

TEST_F(HostReducerTest, other_messages_may_flow_meanwhile) {
  std::vector<float> gradients(200000, 1.0F);
  HostReducer reducer(world, gradients.size(), 100000);
  reducer.begin(view_of(gradients));
  for (std::size_t ready = 0; ready <= gradients.size(); ready += 10000) {
    reducer.ready_up_to(ready);
    std::vector<double> statistics(64, 1.0);  // as batch norm does between two layers
    world.all_reduce_sum(statistics, "a test");
    ASSERT_EQ(statistics[63], world.size());
  }
  reducer.finish();
  EXPECT_EQ(std::count(gradients.begin(), gradients.end(), static_cast<float>(world.size())), 200000);
}

TEST_F(HostReducerTest, refuses_to_be_used_out_of_order) {
  std::vector<float> gradients(100), others(99);
  HostReducer reducer(world, gradients.size(), 64);
  EXPECT_THROW(reducer.ready_up_to(0), Error);
  EXPECT_THROW(reducer.begin(view_of(others)), Error);
  reducer.begin(view_of(gradients));
  EXPECT_THROW(reducer.ready_up_to(101), Error);
  reducer.ready_up_to(50);
  EXPECT_THROW(reducer.ready_up_to(49), Error);
  if (world.size() > 1) {
    EXPECT_THROW(reducer.begin(view_of(gradients)), Error);
  }
  reducer.finish();
  EXPECT_THROW(reducer.finish(), Error);
}

TEST_F(HostReducerTest, a_step_begins_anew_as_long_as_nothing_was_sent) {
  std::vector<float> lost(100, 7.0f), gradients(100, static_cast<float>(world.rank() + 1));
  HostReducer reducer(world, gradients.size(), 64);
  reducer.begin(view_of(lost));
  reducer.ready_up_to(15);  // a bucket has 16
  EXPECT_FALSE(reducer.sent());
  reducer.begin(view_of(gradients));
  reducer.ready_up_to(16);
  EXPECT_EQ(reducer.sent(), world.size() > 1);
  reducer.finish();
  const int ranks = world.size();
  EXPECT_EQ(gradients, std::vector<float>(100, static_cast<float>(ranks * (ranks + 1) / 2)));
  EXPECT_EQ(lost, std::vector<float>(100, 7.0f));
}

}  // namespace
}  // namespace motley::comm
