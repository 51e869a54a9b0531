// A forward and backward pass of batch normalisation on made-up values.
#pragma once

#include "backend_test.h"

namespace motley::test {

struct BatchNormCase {
  Shape shape;
  Activation activation;
  bool residual;

  std::int64_t c() const { return shape[-1]; }
  std::int64_t rows() const { return shape.elements() / c(); }
};

inline constexpr double batch_norm_eps = 1e-2, batch_norm_momentum = 0.1;

inline Tensor filled(Backend& backend, DType dtype, const Shape& shape, std::uint32_t stream, float low = -2,
                     float high = 3) {
  return typed(backend, dtype, random_values(shape.elements(), stream, low, high), shape);
}

inline Tensor constant(Backend& backend, const Shape& shape, float value, DType dtype = DType::f32) {
  return typed(backend, dtype, std::vector<float>(static_cast<std::size_t>(shape.elements()), value), shape);
}

// What is normalised, and with what.
struct BatchNormInputs {
  BatchNormInputs() = default;
  BatchNormInputs(Backend& backend, const BatchNormCase& c, DType dtype)
      : x(filled(backend, dtype, c.shape, 1)),
        gamma(filled(backend, DType::f32, {c.c()}, 3, -1, 2)),
        beta(filled(backend, DType::f32, {c.c()}, 4)),
        dy(filled(backend, dtype, c.shape, 5)) {
    if (c.residual) residual = filled(backend, dtype, c.shape, 2);
  }
  Tensor x, residual, gamma, beta, dy;
};

// One forward and backward pass, all results kept.
struct BatchNormPass {
  Tensor sums, mean, rstd, running_mean, running_var, y, backward_sums, dgamma, dbeta, dx, dresidual;
};

inline ConstView optional(const Tensor& tensor, bool given) {
  return given ? tensor.view() : View{};
}

inline BatchNormPass run(Backend& backend, const BatchNormCase& c, const BatchNormInputs& in) {
  const DType dtype = in.x.view().dtype;
  const Shape row{c.c()}, two_rows{2, c.c()};
  const auto junk = [&](const Shape& shape, DType type) { return constant(backend, shape, 12345.0f, type); };
  BatchNormPass p;
  p.sums = Tensor(backend, std::vector<double>(static_cast<std::size_t>(2 * c.c()), 12345.0), two_rows);
  p.backward_sums =
      Tensor(backend, std::vector<double>(static_cast<std::size_t>(2 * c.c()), 12345.0), two_rows);
  p.mean = junk(row, DType::f32), p.rstd = junk(row, DType::f32);
  p.running_mean = filled(backend, DType::f32, row, 6);
  p.running_var = filled(backend, DType::f32, row, 7, 0.5f, 2);
  p.y = junk(c.shape, dtype), p.dx = junk(c.shape, dtype), p.dresidual = junk(c.shape, dtype);
  p.dgamma = junk(row, DType::f32), p.dbeta = junk(row, DType::f32);
  const auto count = static_cast<double>(c.rows());
  backend.batch_norm_sums(in.x, p.sums);
  backend.batch_norm_statistics(p.sums, count, batch_norm_eps, batch_norm_momentum, p.mean, p.rstd,
                                p.running_mean, p.running_var);
  backend.batch_norm_forward(c.activation, in.x, optional(in.residual, c.residual), p.mean, p.rstd, in.gamma,
                             in.beta, p.y);
  const ConstView y = optional(p.y, c.residual && c.activation == Activation::relu);
  backend.batch_norm_backward_sums(c.activation, in.x, y, in.dy, p.mean, p.rstd, in.gamma, in.beta,
                                   p.backward_sums, p.dgamma, p.dbeta, false);
  backend.batch_norm_backward(c.activation, in.x, y, in.dy, p.mean, p.rstd, in.gamma, in.beta,
                              p.backward_sums, count, p.dx, c.residual ? p.dresidual.view() : View{});
  return p;
}

}  // namespace motley::test
