// Against PyTorch in float64 (tests/golden/batch_norm.py made the file), and against the definition.
#include "batch_norm_test.h"
#include "support/golden.h"

namespace motley::test {
namespace {

// One channel, few and many, whole packs and not; rows that are one block, or several with a part of one.
const BatchNormCase cases[] = {{{2, 1}, Activation::none, false},
                               {{1, 1, 3, 1}, Activation::relu, true},
                               {{3, 7, 5, 3}, Activation::relu, false},
                               {{2, 5, 3, 16}, Activation::swish, false},
                               {{5, 3, 4, 13}, Activation::none, true},
                               {{37, 64}, Activation::relu, true},
                               {{3, 9, 8, 67}, Activation::relu, false},
                               {{2, 5, 5, 100}, Activation::swish, false},
                               {{5, 257}, Activation::none, false},
                               {{3, 2, 2, 513}, Activation::relu, true},
                               {{2, 1037}, Activation::none, true},
                               {{6, 4096}, Activation::relu, false},
                               {{11, 40, 101, 3}, Activation::swish, false},
                               {{41, 40, 20, 4}, Activation::relu, true}};

std::vector<double> doubles(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

// --- The definition, in float64 ---------------------------------------------------------------------------

// A result, and the size of the terms that it is the sum of.
struct Wanted {
  explicit Wanted(std::size_t size) : value(size), size_of_terms(size) {}
  std::vector<double> value, size_of_terms;
  void add(std::size_t i, double term) {
    value[i] += term;
    size_of_terms[i] += std::abs(term);
  }
};

void expect_definition(const BatchNormCase& c, const BatchNormInputs& in, const BatchNormPass& p,
                       DType dtype) {
  const auto x = doubles(in.x.floats()), dy = doubles(in.dy.floats()), y = doubles(p.y.floats());
  const auto residual = c.residual ? doubles(in.residual.floats()) : std::vector<double>(x.size());
  const auto gamma = doubles(in.gamma.floats()), beta = doubles(in.beta.floats());
  const auto channels = static_cast<std::size_t>(c.c());
  const auto count = static_cast<double>(c.rows());
  Wanted sum(channels), square(channels), dbeta(channels), dgamma(channels), want_y(x.size()),
      want_dx(x.size());
  std::vector<double> mean(channels), rstd(channels), var(channels), g(x.size()), want_g(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) mean[i % channels] += x[i] / count;
  for (std::size_t i = 0; i < x.size(); ++i)
    var[i % channels] += std::pow(x[i] - mean[i % channels], 2) / count;
  for (std::size_t i = 0; i < channels; ++i) rstd[i] = 1 / std::sqrt(var[i] + batch_norm_eps);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t k = i % channels;
    const double normal = (x[i] - mean[k]) * rstd[k], z = normal * gamma[k] + beta[k] + residual[i];
    const double sigmoid = 1 / (1 + std::exp(-z));
    const double activated = c.activation == Activation::relu    ? std::max(z, 0.0)
                             : c.activation == Activation::swish ? z * sigmoid
                                                                 : z;
    const double slope = c.activation == Activation::relu    ? (y[i] > 0 ? 1 : 0)
                         : c.activation == Activation::swish ? sigmoid + z * sigmoid * (1 - sigmoid)
                                                             : 1;
    want_y.value[i] = activated;
    const double size_of_normal = (std::abs(x[i]) + std::abs(mean[k])) * rstd[k];
    want_y.size_of_terms[i] =
        1 + size_of_normal * std::abs(gamma[k]) + std::abs(beta[k]) + std::abs(residual[i]);
    g[i] = dy[i] * slope;
    sum.add(k, x[i]), square.add(k, x[i] * x[i]);
    dbeta.add(k, g[i]), dgamma.add(k, g[i] * normal);
    dgamma.size_of_terms[k] += std::abs(dy[i]) * size_of_normal, dbeta.size_of_terms[k] += std::abs(dy[i]);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t k = i % channels;
    const double normal = (x[i] - mean[k]) * rstd[k],
                 size_of_normal = (std::abs(x[i]) + std::abs(mean[k])) * rstd[k];
    const double level = dbeta.value[k] / count, slope = dgamma.value[k] / count;
    want_dx.value[i] = gamma[k] * rstd[k] * (g[i] - level - normal * slope);
    want_dx.size_of_terms[i] = std::abs(gamma[k]) * rstd[k] *
                               (std::abs(dy[i]) + dbeta.size_of_terms[k] / count +
                                (1 + size_of_normal) * dgamma.size_of_terms[k] / count);
  }
  const auto sums = p.sums.values<double>(), backward_sums = p.backward_sums.values<double>();
  for (std::size_t k = 0; k < channels; ++k) {
    EXPECT_NEAR(sums[k], sum.value[k], 1e-6 * sum.size_of_terms[k]);
    EXPECT_NEAR(sums[channels + k], square.value[k], 1e-6 * square.size_of_terms[k]);
    EXPECT_NEAR(backward_sums[k], dbeta.value[k], 1e-6 * dbeta.size_of_terms[k]);
    EXPECT_NEAR(backward_sums[channels + k], dgamma.value[k], 1e-6 * dgamma.size_of_terms[k]);
  }
  expect_within(p.mean.floats(), mean, 1e-6, 1e-6);
  expect_within(p.rstd.floats(), rstd, 1e-6, 0);
  const auto start_mean = random_values(c.c(), 6, -2, 3), start_var = random_values(c.c(), 7, 0.5f, 2);
  std::vector<double> moved_mean, moved_var;
  for (std::size_t k = 0; k < channels; ++k) {
    moved_mean.push_back(0.9 * static_cast<double>(start_mean[k]) + 0.1 * mean[k]);
    moved_var.push_back(0.9 * static_cast<double>(start_var[k]) + 0.1 * var[k] * count / (count - 1));
  }
  expect_within(p.running_mean.floats(), moved_mean, 1e-6, 1e-6);
  expect_within(p.running_var.floats(), moved_var, 1e-6, 1e-6);
  const double relative = rounding(dtype);
  expect_close(p.y.floats(), want_y.value, want_y.size_of_terms, relative);
  expect_close(p.dgamma.floats(), dgamma.value, dgamma.size_of_terms);
  expect_close(p.dbeta.floats(), dbeta.value, dbeta.size_of_terms);
  expect_close(p.dx.floats(), want_dx.value, want_dx.size_of_terms, relative);
  if (c.residual) expect_within(p.dresidual.floats(), g, relative, 0);
}

class BatchNormTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(BatchNormTest);

TEST_P(BatchNormTest, is_the_definition_in_float64) {
  for (const DType dtype : element_types(*backend)) {
    for (const BatchNormCase& c : cases) {
      if (c.shape.elements() > 100000 && dtype == DType::f16) continue;  // slow on a simulated device
      SCOPED_TRACE(c.shape.to_string() + " " + std::string(name_of(dtype)));
      const BatchNormInputs in(*backend, c, dtype);
      expect_definition(c, in, run(*backend, c, in), dtype);
    }
  }
}

TEST_P(BatchNormTest, agrees_with_pytorch_in_float64) {
  const Golden golden("batch_norm.safetensors");
  for (const std::string name : {"plain", "relu", "swish", "residual", "residual_relu", "rows", "far_mean"}) {
    SCOPED_TRACE(name);
    const auto load = [&](const std::string& tensor) -> Tensor {
      const GoldenTensor& from = golden[name + "." + tensor];
      return {*backend, from.values<float>(), from.shape};
    };
    const auto numbers = golden[name + ".numbers"].values<float>();
    const auto activation = std::vector{Activation::none, Activation::relu,
                                        Activation::swish}[static_cast<std::size_t>(numbers[2])];
    const bool has_residual = numbers[3] != 0;
    // PyTorch was given these as doubles.
    const double move = std::round(static_cast<double>(numbers[0]) * 1e6) / 1e6;
    const double epsilon = std::round(static_cast<double>(numbers[1]) * 1e9) / 1e9;
    const Tensor x = load("x"), gamma = load("gamma"), beta = load("beta"), dy = load("dy"),
                 running_mean = load("running_mean"), running_var = load("running_var");
    const Tensor residual = has_residual ? load("residual") : Tensor();
    const Shape channels = gamma.shape();
    const Tensor mean = junk(channels), rstd = junk(channels), y = junk(x.shape()), dx = junk(x.shape()),
                 dresidual = junk(x.shape()), dgamma = junk(channels), dbeta = junk(channels);
    const Tensor sums = zeros(channels.with_batch(2), DType::f64);
    // A mean of 1000 deviations is rounded in float32: y is off by as much.
    const double tolerance = name == "far_mean" ? 1e-4 : 3e-6;
    const auto expect_golden = [&](const Tensor& got, const std::string& tensor, double near) {
      SCOPED_TRACE(tensor);
      expect_near(got.values(), golden[name + "." + tensor].values<float>(), near);
    };
    backend->batch_norm_running(running_var, epsilon, rstd);
    backend->batch_norm_forward(activation, x, optional(residual, has_residual), running_mean, rstd, gamma,
                                beta, y);
    expect_golden(y, "evaluated", tolerance);

    const auto count = static_cast<double>(x.shape().elements() / channels[0]);
    backend->batch_norm_sums(x, sums);
    backend->batch_norm_statistics(sums, count, epsilon, move, mean, rstd, running_mean, running_var);
    expect_golden(running_mean, "moved_mean", 1e-6);
    expect_golden(running_var, "moved_var", 1e-6);
    backend->batch_norm_forward(activation, x, optional(residual, has_residual), mean, rstd, gamma, beta, y);
    expect_golden(y, "y", tolerance);
    const ConstView seen = optional(y, has_residual && activation == Activation::relu);
    backend->batch_norm_backward_sums(activation, x, seen, dy, mean, rstd, gamma, beta, sums, dgamma, dbeta,
                                      false);
    backend->batch_norm_backward(activation, x, seen, dy, mean, rstd, gamma, beta, sums, count, dx,
                                 dresidual);
    expect_golden(dgamma, "dgamma", name == "far_mean" ? 1e-3 : 3e-6);
    expect_golden(dbeta, "dbeta", 3e-6);
    expect_golden(dx, "dx", tolerance);
    if (has_residual) expect_golden(dresidual, "dresidual", tolerance);
  }
}

// --- Sums -------------------------------------------------------------------------------------------------

TEST_P(BatchNormTest, sums_of_parts_of_a_batch_add_up_to_those_of_the_whole) {
  const BatchNormCase c{{9, 3, 5, 20}, Activation::relu, false};
  const BatchNormInputs in(*backend, c, DType::f32);
  const BatchNormPass whole = run(*backend, c, in);
  const std::int64_t sample = 3 * 5 * 20;
  std::vector<double> forward(40), backward(40);
  const auto add = [](std::vector<double>& to, const Tensor& from) {
    const auto values = from.values<double>();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += values[i];
  };
  const Tensor dgamma = constant(*backend, {20}, 0), dbeta = constant(*backend, {20}, 0);
  for (const auto& [begin, n] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 0}, {1, 2}, {3, 6}}) {
    const Shape shape{n, 3, 5, 20};
    const View x = view_of(in.x.view().as<float>() + begin * sample, shape),
               dy = view_of(in.dy.view().as<float>() + begin * sample, shape);
    const Tensor sums = zeros({2, 20}, DType::f64);
    backend->batch_norm_sums(x, sums);
    add(forward, sums);
    backend->batch_norm_backward_sums(c.activation, x, {}, dy, whole.mean, whole.rstd, in.gamma, in.beta,
                                      sums, dgamma, dbeta, true);
    add(backward, sums);
    const Tensor dx = junk(shape);
    backend->batch_norm_backward(c.activation, x, {}, dy, whole.mean, whole.rstd, in.gamma, in.beta,
                                 whole.backward_sums, static_cast<double>(c.rows()), dx, {});
    const auto all = whole.dx.values();
    EXPECT_EQ(dx.values(),
              std::vector<float>(all.begin() + begin * sample, all.begin() + (begin + n) * sample));
  }
  const auto want_forward = whole.sums.values<double>(), want_backward = whole.backward_sums.values<double>();
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_NEAR(forward[i], want_forward[i], 1e-4 * 1e-2 * 135) << i;
    EXPECT_NEAR(backward[i], want_backward[i], 1e-4 * 1e-2 * 135) << i;
  }
  expect_near(dgamma.values(), whole.dgamma.values(), 1e-5);
  expect_near(dbeta.values(), whole.dbeta.values(), 1e-5);
}

TEST_P(BatchNormTest, a_part_without_samples_has_sums_of_zero) {
  for (const DType dtype : element_types(*backend)) {
    const Shape none{0, 3, 5, 20}, row{20};
    const Tensor nothing(*backend, dtype, none), ones = constant(*backend, row, 1);
    const Tensor sums(*backend, std::vector<double>(40, 7.0), {2, 20});
    backend->batch_norm_sums(nothing, sums);
    EXPECT_EQ(sums.values<double>(), std::vector<double>(40, 0.0));
    backend->batch_norm_forward(Activation::relu, nothing, {}, ones, ones, ones, ones, nothing);
    const Tensor again(*backend, std::vector<double>(40, 7.0), {2, 20});
    const Tensor dgamma = constant(*backend, row, 2), dbeta = constant(*backend, row, 3);
    backend->batch_norm_backward_sums(Activation::relu, nothing, {}, nothing, ones, ones, ones, ones, again,
                                      dgamma, dbeta, true);
    EXPECT_EQ(again.values<double>(), std::vector<double>(40, 0.0));
    EXPECT_EQ(dgamma.values(), std::vector<float>(20, 2.0f));
    EXPECT_EQ(dbeta.values(), std::vector<float>(20, 3.0f));
    backend->batch_norm_backward_sums(Activation::relu, nothing, {}, nothing, ones, ones, ones, ones, again,
                                      dgamma, dbeta, false);
    EXPECT_EQ(dgamma.values(), std::vector<float>(20, 0.0f));
    backend->batch_norm_backward(Activation::relu, nothing, {}, nothing, ones, ones, ones, ones, again, 8,
                                 nothing, {});
  }
}

// The variance of float32 values is had to the precision of float32, wherever they lie.
TEST_P(BatchNormTest, variances_do_not_suffer_from_a_mean_of_many_deviations) {
  constexpr std::int64_t rows = 3000, channels = 5;
  for (const float shift : {0.0f, 1000.0f, -10000.0f}) {
    SCOPED_TRACE(shift);
    const auto values = random_values(rows * channels, 8, shift - 1.7f, shift + 1.7f);
    const Tensor x = tensor(values, {rows, channels}), sums = zeros({2, channels}, DType::f64);
    backend->batch_norm_sums(x, sums);
    const auto got = sums.values<double>();
    for (std::size_t k = 0; k < channels; ++k) {
      double mean = 0, variance = 0;
      for (std::size_t i = k; i < values.size(); i += channels) mean += static_cast<double>(values[i]) / rows;
      for (std::size_t i = k; i < values.size(); i += channels)
        variance += std::pow(static_cast<double>(values[i]) - mean, 2) / rows;
      EXPECT_NEAR(got[k] / rows, mean, 1e-7 * std::sqrt(variance) + 1e-15 * std::abs(mean));
      const double average = got[k] / rows;
      EXPECT_NEAR(got[channels + k] / rows - average * average, variance, 1e-6 * variance);
    }
  }
}

// The variance of a channel of one value rounds to less than 0.
TEST_P(BatchNormTest, variances_are_never_negative) {
  const double value = 1000.1, count = 7;
  const Tensor sums(*backend, std::vector<double>{value * count, value * value * count * (1 - 1e-12)},
                    {2, 1});
  const Tensor mean = junk({1}), rstd = junk({1}), running_mean = constant(*backend, {1}, 0),
               running_var = constant(*backend, {1}, 0);
  backend->batch_norm_statistics(sums, count, 1e-5, 1, mean, rstd, running_mean, running_var);
  EXPECT_NEAR(rstd.values()[0], 1 / std::sqrt(1e-5), 1e-3);
  EXPECT_EQ(running_var.values()[0], 0.0f);
}

// Longer than any run that is summed in float32, from an address that allows no wide access.
TEST_P(BatchNormTest, sums_over_many_rows_keep_their_precision) {
  constexpr std::int64_t rows = 1250001, channels = 4;
  const auto values = random_values(1 + rows * channels, 9, 0, 1);
  const Tensor memory = tensor(values, {1 + rows * channels});
  const View x = view_of(memory.view().as<float>() + 1, {rows, channels});
  const Tensor sums = zeros({2, channels}, DType::f64), zero = constant(*backend, {channels}, 0),
               one = constant(*backend, {channels}, 1), dgamma = junk({channels}), dbeta = junk({channels});
  std::vector<double> want(2 * channels);
  for (std::size_t i = 0; i < rows * channels; ++i) {
    const auto value = static_cast<double>(values[1 + i]);
    want[i % channels] += value;
    want[channels + i % channels] += value * value;
  }
  backend->batch_norm_sums(x, sums);
  const auto forward = sums.values<double>();
  // With a mean of 0 and a deviation of 1, and dy = x, these are the same sums.
  backend->batch_norm_backward_sums(Activation::none, x, {}, x, zero, one, one, zero, sums, dgamma, dbeta,
                                    false);
  const auto backward = sums.values<double>();
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(forward[i], want[i], 1e-8 * want[i]);
    EXPECT_NEAR(backward[i], want[i], 1e-8 * want[i]);
  }
}

TEST_P(BatchNormTest, gradients_of_parameters_are_added_when_asked) {
  const BatchNormCase c{{3, 4, 5, 33}, Activation::relu, false};
  const BatchNormInputs in(*backend, c, DType::f32);
  const BatchNormPass p = run(*backend, c, in);
  const Tensor dgamma = constant(*backend, {33}, 2), dbeta = constant(*backend, {33}, 3);
  backend->batch_norm_backward_sums(c.activation, in.x, {}, in.dy, p.mean, p.rstd, in.gamma, in.beta, p.sums,
                                    dgamma, dbeta, true);
  const auto got_gamma = dgamma.values(), got_beta = dbeta.values();
  for (std::size_t i = 0; i < 33; ++i) {
    EXPECT_EQ(got_gamma[i], p.dgamma.values()[i] + 2.0f);
    EXPECT_EQ(got_beta[i], p.dbeta.values()[i] + 3.0f);
  }
  EXPECT_EQ(p.sums.values<double>(), p.backward_sums.values<double>()) << "sums are written";
}

TEST_P(BatchNormTest, statistics_have_the_same_bits_on_every_device) {
  constexpr std::int64_t c = 1000;
  std::vector<double> sums;
  for (const float value : random_values(c, 10, -900, 1100)) sums.push_back(static_cast<double>(value) / 3);
  for (const float value : random_values(c, 11, 20000, 40000)) sums.push_back(static_cast<double>(value) / 3);
  const auto reference = make_cpu_backend(1);
  const auto results = [&](Backend& on) {
    const Tensor from(on, sums, {2, c}), mean = constant(on, {c}, 9), rstd = constant(on, {c}, 9);
    const Tensor running_mean = filled(on, DType::f32, {c}, 12),
                 running_var = filled(on, DType::f32, {c}, 13, 0, 2);
    const Tensor evaluated = constant(on, {c}, 9);
    on.batch_norm_statistics(from, 77, 1e-5, 0.1, mean, rstd, running_mean, running_var);
    on.batch_norm_running(running_var, 1e-5, evaluated);
    return std::vector{mean.values(), rstd.values(), running_mean.values(), running_var.values(),
                       evaluated.values()};
  };
  EXPECT_EQ(results(*backend), results(*reference));
}

}  // namespace
}  // namespace motley::test
