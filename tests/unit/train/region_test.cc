#include "train/region.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace motley::train {
namespace {

void work(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(ComputeRegion, counts_what_happens_inside_and_nothing_else) {
  ComputeRegion region(1);
  region.open();
  work(0.02);
  region.close();
  work(0.5);
  region.open();
  work(0.02);
  region.close();
  const double seconds = region.take_seconds();
  EXPECT_GE(seconds, 0.04);
  EXPECT_LT(seconds, 0.4) << "the half second outside was counted";
  EXPECT_EQ(region.take_seconds(), 0.0);
}

TEST(ComputeRegion, a_slow_rank_takes_its_factor_longer) {
  ComputeRegion region(3);
  const auto start = std::chrono::steady_clock::now();
  region.open();
  for (int i = 0; i < 20; ++i) {
    work(0.002);
    region.lap();
  }
  region.close();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(wall, 3 * 0.04 - 0.002);
  EXPECT_NEAR(region.take_seconds(), wall, 0.01) << "sleep counts as compute";
}

}  // namespace
}  // namespace motley::train
