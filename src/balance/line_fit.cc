#include "balance/line_fit.h"

#include <cmath>
#include <cstddef>

#include "core/error.h"

namespace motley::balance {
namespace {

double residual(const Line& line, std::span<const double> x, std::span<const double> y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double off = (line.at_zero + line.slope * x[i]) / y[i] - 1;
    sum += off * off;
  }
  return std::sqrt(sum / static_cast<double>(x.size()));
}

}  // namespace

Line fit_line(std::span<const double> x, std::span<const double> y) {
  MOTLEY_CHECK(!x.empty() && x.size() == y.size());
  // Weighted normal equations, weight 1 / y^2; the weighted sum of y y is the number of points.
  double w = 0, wx = 0, wxx = 0, wy = 0, wxy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    MOTLEY_CHECK(y[i] > 0 && x[i] >= 0);
    const double weight = 1 / (y[i] * y[i]);
    w += weight;
    wx += weight * x[i];
    wxx += weight * x[i] * x[i];
    wy += 1 / y[i];
    wxy += x[i] / y[i];
  }
  const Line flat{wy / w, 0}, through_origin{0, wxx > 0 ? wxy / wxx : 0};
  const double determinant = w * wxx - wx * wx;
  Line line = through_origin;
  if (determinant > 1e-12 * w * wxx) {
    line = {(wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant};
    // The best point of a convex function outside a quadrant has its best point inside on an edge.
    if (line.at_zero < 0) line = through_origin;
    if (line.slope < 0) line = flat;
  }
  line.residual = residual(line, x, y);
  return line;
}

}  // namespace motley::balance
