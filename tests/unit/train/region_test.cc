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
TEST(ComputeRegion, counts_what_happens_inside_and_nothing_else) {
  ComputeRegion region(1);
  double most_s = 0;
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    region.open();
    work(0.02);
    region.close();
    most_s += seconds_since(start);
    work(0.05);  // outside
  }
  const double seconds = region.take_seconds();
  EXPECT_GE(seconds, 3 * 0.02);
  EXPECT_LE(seconds, most_s) << "time outside was counted";
  EXPECT_EQ(region.take_seconds(), 0.0);
}

TEST(ComputeRegion, a_slow_rank_takes_its_factor_longer) {
  ComputeRegion region(3);
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
  const double seconds = region.take_seconds();
  EXPECT_GE(seconds, least_s) << "sleep counts as compute";
  EXPECT_LE(seconds, most_s);
}

}  // namespace
}  // namespace motley::train
