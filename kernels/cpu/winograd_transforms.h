// The transforms of Winograd's F(4 x 4, 3 x 3): Lavin, Gray, "Fast algorithms for convolutional neural networks", CVPR 2016,
// section 4. One dimension of
//
//   y [4] = A^T ((G g) * (B^T d)),   g [3], d [6],
//
// is the product of polynomials by their values at 0, 1/sqrt(2), -1/sqrt(2), sqrt(2), -sqrt(2) and infinity. Points whose
// squares are 1/2 and 2 make the largest factor of A and B 2.8 and round three times less than the paper's 1 and 2, whose
// is 8.
#pragma once

#include "kernels/cpu/vector.h"

namespace motley::winograd {

constexpr int outputs = 4, inputs = 6, taps = 3;  // of a tile's side, and of the kernel's
constexpr int points = inputs * inputs;

constexpr float small = 0.707106781186547524f, large = 1.41421356237309505f;  // the points
constexpr float small_cubed = 0.353553390593273762f, large_cubed = 2.82842712474619f;

// B^T d
inline void of_input(const Vec (&d)[inputs], Vec (&t)[inputs]) {
  t[0] = d[0] - 2.5f * d[2] + d[4];
  const Vec even_small = d[4] - 2.0f * d[2], odd_small = small * (d[3] - 2.0f * d[1]);
  t[1] = even_small + odd_small;
  t[2] = even_small - odd_small;
  const Vec even_large = d[4] - 0.5f * d[2], odd_large = large * (d[3] - 0.5f * d[1]);
  t[3] = even_large + odd_large;
  t[4] = even_large - odd_large;
  t[5] = d[1] - 2.5f * d[3] + d[5];
}

// A^T m
inline void to_output(const Vec (&m)[inputs], Vec (&y)[outputs]) {
  const Vec sum_small = m[1] + m[2], sum_large = m[3] + m[4];
  const Vec difference_small = m[1] - m[2], difference_large = m[3] - m[4];
  y[0] = m[0] + sum_small + sum_large;
  y[1] = small * difference_small + large * difference_large;
  y[2] = 0.5f * sum_small + 2.0f * sum_large;
  y[3] = small_cubed * difference_small + large_cubed * difference_large + m[5];
}

// A y
inline void of_output(const Vec (&y)[outputs], Vec (&e)[inputs]) {
  e[0] = y[0];
  const Vec even_small = y[0] + 0.5f * y[2], odd_small = small * y[1] + small_cubed * y[3];
  e[1] = even_small + odd_small;
  e[2] = even_small - odd_small;
  const Vec even_large = y[0] + 2.0f * y[2], odd_large = large * y[1] + large_cubed * y[3];
  e[3] = even_large + odd_large;
  e[4] = even_large - odd_large;
  e[5] = y[3];
}

// G g
inline void of_kernel(const Vec (&g)[taps], Vec (&u)[inputs]) {
  constexpr float third = 1.0f / 3, two_thirds = 2.0f / 3, sixth = 1.0f / 6;
  u[0] = g[0];
  const Vec even_small = two_thirds * g[0] + third * g[2], odd_small = two_thirds * small * g[1];
  u[1] = -even_small - odd_small;
  u[2] = odd_small - even_small;
  const Vec even_large = sixth * g[0] + third * g[2], odd_large = sixth * large * g[1];
  u[3] = even_large + odd_large;
  u[4] = even_large - odd_large;
  u[5] = g[2];
}

// G^T u
inline void to_kernel(const Vec (&u)[inputs], Vec (&g)[taps]) {
  constexpr float third = 1.0f / 3, two_thirds = 2.0f / 3, sixth = 1.0f / 6;
  const Vec sum_small = u[1] + u[2], sum_large = u[3] + u[4];
  g[0] = u[0] - two_thirds * sum_small + sixth * sum_large;
  g[1] = sixth * large * (u[3] - u[4]) - two_thirds * small * (u[1] - u[2]);
  g[2] = third * (sum_large - sum_small) + u[5];
}

// to [to_side x to_side] = the transform of both dimensions of from [from_side x from_side].
template <int from_side, int to_side, class Transform>
inline void both_ways(const Transform& transform, const Vec (&from)[from_side][from_side],
                      Vec (&to)[to_side][to_side]) {
  Vec half[from_side][to_side];  // [column][row]
  for (int column = 0; column < from_side; ++column) {
    Vec line[from_side];
    for (int row = 0; row < from_side; ++row) line[row] = from[row][column];
    transform(line, half[column]);
  }
  for (int row = 0; row < to_side; ++row) {
    Vec line[from_side];
    for (int column = 0; column < from_side; ++column) line[column] = half[column][row];
    transform(line, to[row]);
  }
}

}  // namespace motley::winograd
