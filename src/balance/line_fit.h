// A straight line through measured times.
#pragma once

#include <span>

namespace motley::balance {

struct Line {
  double at_zero = 0, slope = 0;
  // Root mean square of (measured - fitted) / measured.
  double residual = 0;
};

// The line with at_zero >= 0 and slope >= 0 that fits best in least squares of the relative error, so that
// small sizes count as much as large ones: times grow with size, and so does their scatter. y > 0, x >= 0; of
// points that all have the same x it is the line through the origin.
Line fit_line(std::span<const double> x, std::span<const double> y);

}  // namespace motley::balance
