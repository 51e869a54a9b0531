#include "balance/line_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace motley::balance {
namespace {

TEST(LineFit, finds_the_line_that_the_points_lie_on) {
  const std::vector<double> x = {1, 2, 4, 8, 16}, y = {5.5, 6, 7, 9, 13};
  const Line line = fit_line(x, y);
  EXPECT_NEAR(line.at_zero, 5, 1e-9);
  EXPECT_NEAR(line.slope, 0.5, 1e-9);
  EXPECT_NEAR(line.residual, 0, 1e-9);
}

TEST(LineFit, small_sizes_count_as_much_as_large_ones) {
  // The last point is 10 % above the line 1 + x. Unweighted, it would bend the line there and miss the first
  // by half.
  const std::vector<double> x = {0, 1, 2, 4, 1000}, y = {1, 2, 3, 5, 1101.1};
  const Line line = fit_line(x, y);
  EXPECT_NEAR(line.at_zero, 1, 0.05);
  EXPECT_LT(line.residual, 0.05);
}

TEST(LineFit, has_no_negative_part) {
  const std::vector<double> x = {1, 2, 4}, steep = {1, 3, 9}, falling = {9, 3, 1};
  EXPECT_EQ(fit_line(x, steep).at_zero, 0);
  EXPECT_GT(fit_line(x, steep).slope, 0);
  EXPECT_EQ(fit_line(x, falling).slope, 0);
  EXPECT_GT(fit_line(x, falling).at_zero, 0);
}

TEST(LineFit, of_one_size_goes_through_the_origin) {
  const std::vector<double> x = {4, 4}, y = {8, 8};
  const Line line = fit_line(x, y);
  EXPECT_EQ(line.at_zero, 0);
  EXPECT_DOUBLE_EQ(line.slope, 2);
}

TEST(LineFit, says_how_far_off_the_points_are) {
  // 10 % above and below: the root mean square of the relative error is near 0.1.
  const std::vector<double> x = {1, 1, 8, 8}, y = {1.1, 0.9, 8.8, 7.2};
  EXPECT_NEAR(fit_line(x, y).residual, 0.1, 0.01);
}

}  // namespace
}  // namespace motley::balance
