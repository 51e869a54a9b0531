#include "train/region.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace motley::train {
namespace {

using Clock = std::chrono::steady_clock;

void work(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// On a busy machine any sleep may last much longer than asked for: clocks around the region say how long it
// can have been open at most, and what it did at least.
class ComputeRegionTest : public ::testing::Test {
 protected:
  ComputeRegion region_of(const std::string& slow) {
    return {*backend_, balance::parse_slow("0:" + slow, 1)[0], 0, 1};
  }
  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
};

TEST_F(ComputeRegionTest, counts_what_happens_inside_and_nothing_else) {
  ComputeRegion region(*backend_, balance::SlowSpec(), 0, 1);
  double most_s = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    region.open();
    work(0.02);
    region.close();
    most_s += seconds_since(start);
    work(0.05);  // outside
  }
  const RegionTimes times = region.take();
  EXPECT_GE(times.compute_s, 3 * 0.02);
  EXPECT_LE(times.compute_s, most_s) << "time outside was counted";
  EXPECT_EQ(times.slept_s, 0.0);
  EXPECT_EQ(region.take().compute_s, 0.0);
}

TEST_F(ComputeRegionTest, a_slow_rank_takes_its_factor_longer) {
  ComputeRegion region = region_of("3x");
  region.begin_step(1, 8);
  const auto start = Clock::now();
  region.open();
  const auto inside = Clock::now();
  for (int i = 0; i < 20; ++i) {
    work(0.002);
    region.lap();
  }
  const double least_s = seconds_since(inside);
  region.close();
  const double most_s = seconds_since(start);
  // Less than the shortest sleep may still be owed in the end.
  EXPECT_GE(most_s, 3 * 20 * 0.002 - 0.002);
  const RegionTimes times = region.take();
  EXPECT_GE(times.compute_s, least_s) << "sleep counts as compute";
  EXPECT_LE(times.compute_s, most_s);
  EXPECT_GE(times.slept_s, 2 * 20 * 0.002 - 0.002);
  EXPECT_LT(times.slept_s, times.compute_s);
}

TEST_F(ComputeRegionTest, a_delay_is_slept_once_per_batch_and_only_with_samples) {
  ComputeRegion region = region_of("+30ms");
  region.begin_step(1, 0);
  region.open();
  region.close();
  EXPECT_EQ(region.take().slept_s, 0.0);
  region.begin_step(2, 8);
  for (int i = 0; i < 2; ++i) {  // passes, then the optimizer
    region.open();
    region.lap();
    region.lap();
    region.close();
  }
  EXPECT_GE(region.take().slept_s, 0.030);
  region.open();
  region.close();
  EXPECT_LT(region.take().slept_s, 0.030) << "it was paid";
}

TEST_F(ComputeRegionTest, slowness_holds_in_its_steps_alone) {
  ComputeRegion region = region_of("+20ms@3-4");
  double slept_s[7] = {};
  for (int step = 1; step <= 6; ++step) {
    region.begin_step(step, 1);
    region.open();
    region.close();
    slept_s[step] = region.take().slept_s;
  }
  EXPECT_EQ(slept_s[1] + slept_s[2], 0.0);
  // A sleep that lasted too long shortens the next.
  EXPECT_GE(slept_s[3], 0.020);
  EXPECT_GE(slept_s[3] + slept_s[4], 0.040 - 0.001);
}

// The sums of batch norm's statistics in the middle of a pass.
TEST_F(ComputeRegionTest, waits_for_other_ranks_are_no_work) {
  for (const char* slow : {"1x", "2x"}) {
    ComputeRegion region = region_of(slow);
    region.begin_step(1, 8);
    const auto start = Clock::now();
    region.open();
    region.begin_micro_batch();
    for (int i = 0; i < 2; ++i) {
      work(0.01);
      region.begin_wait();
      work(0.03);
      region.end_wait();
    }
    region.end_micro_batch();
    region.close();
    const double all_s = seconds_since(start);
    const RegionTimes times = region.take();
    EXPECT_GE(times.waited_s, 2 * 0.03) << slow;
    EXPECT_GE(times.compute_s, (slow[0] - '0') * 2 * 0.01 - 0.001) << slow;
    EXPECT_LE(times.compute_s, all_s - times.waited_s) << slow;
    ASSERT_EQ(times.micro_batches_s.size(), 1u);
    EXPECT_LE(times.micro_batches_s[0], times.compute_s) << slow;
    EXPECT_GE(times.micro_batches_s[0], 2 * 0.01) << slow;
    // Work on either side is slowed down, waits are not.
    EXPECT_LE(times.slept_s, all_s - times.waited_s - 2 * 0.01) << slow;
    EXPECT_EQ(region.take().waited_s, 0.0) << slow;
  }
}

TEST_F(ComputeRegionTest, times_each_micro_batch) {
  ComputeRegion region = region_of("1x");
  region.open();
  for (const double seconds : {0.01, 0.03}) {
    region.begin_micro_batch();
    work(seconds);
    region.end_micro_batch();
    work(0.01);
  }
  region.close();
  const RegionTimes times = region.take();
  ASSERT_EQ(times.micro_batches_s.size(), 2u);
  EXPECT_GE(times.micro_batches_s[0], 0.01);
  EXPECT_GE(times.micro_batches_s[1], 0.03);
  EXPECT_LE(times.micro_batches_s[0] + times.micro_batches_s[1], times.compute_s - 0.02);
  EXPECT_TRUE(region.take().micro_batches_s.empty());
}

}  // namespace
}  // namespace motley::train
