#include "backend_test.h"

namespace motley::test {
namespace {

const RandomKey key(0x123456789abcULL, Purpose::dropout, 3, 17);

struct LayerNormCase {
  std::int64_t n, seq, width;
  double probability;
  bool residual;
};
const LayerNormCase cases[] = {{3, 7, 33, 0.25, true},  {1, 1, 1, 0, true},      {2, 5, 64, 0, false},
                               {5, 9, 130, 0.5, true},  {2, 40, 768, 0.1, true}, {2, 3, 17, 0.3, false},
                               {1, 3, 512, 0.1, true},  {1, 2, 700, 0.1, true},  {1, 3, 1024, 0.1, false},
                               {2, 1, 4096, 0, true},   {1, 2, 4099, 0.1, true}, {1, 2, 6152, 0.1, true},
                               {1, 1, 8200, 0.1, true}};

// One forward and backward pass, all tensors kept.
struct Pass {
  Tensor x, residual, gamma, beta, dy, sum, y, mean, rstd, dsum, dx, dgamma, dbeta;
};

constexpr double eps = 1e-5;
constexpr std::uint32_t first_slot = 40;

Pass run(Backend& backend, const LayerNormCase& c, DType dtype) {
  const Shape shape{c.n, c.seq, c.width}, tokens{c.n, c.seq}, row{c.width};
  const auto filled = [&](std::uint32_t stream) {
    return typed(backend, dtype, random_values(shape.elements(), stream, -2, 3), shape);
  };
  const auto empty = [&](const Shape& s, DType type) {
    return typed(backend, type, std::vector<float>(static_cast<std::size_t>(s.elements()), 12345.0f), s);
  };
  Pass r;
  r.x = filled(1), r.dy = filled(5);
  if (c.residual) r.residual = filled(2);
  r.gamma = Tensor(backend, random_values(c.width, 3), row),
  r.beta = Tensor(backend, random_values(c.width, 4), row);
  r.sum = empty(shape, dtype), r.y = empty(shape, dtype), r.dsum = empty(shape, dtype),
  r.dx = empty(shape, dtype);
  r.mean = empty(tokens, DType::f32), r.rstd = empty(tokens, DType::f32);
  r.dgamma = empty(row, DType::f32), r.dbeta = empty(row, DType::f32);
  const DropoutMask mask{key, first_slot, c.probability};
  backend.add_layer_norm_forward(mask, r.x, c.residual ? ConstView(r.residual) : ConstView{}, r.gamma, r.beta,
                                 eps, r.sum, r.y, r.mean, r.rstd);
  backend.add_layer_norm_backward(mask, r.dy, r.sum, r.mean, r.rstd, r.gamma, r.dsum, r.dx, r.dgamma, r.dbeta,
                                  false);
  return r;
}

class LayerNormTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(LayerNormTest);

// 0 or 1 / (1 - p), element by element.
std::vector<double> factors(const LayerNormCase& c) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < c.n * c.seq * c.width; ++i) {
    const auto slot = first_slot + static_cast<std::uint32_t>(i / (c.seq * c.width));
    const auto element = static_cast<std::uint32_t>(i % (c.seq * c.width));
    const bool dropped = random_u32(key, slot, element) < drop_threshold(c.probability);
    result.push_back(dropped ? 0 : 1 / (1 - c.probability));
  }
  return result;
}

TEST_P(LayerNormTest, is_the_definition_in_float64_with_dropout_by_slot_and_element) {
  for (const DType dtype : element_types(*backend)) {
    for (const LayerNormCase& c : cases) {
      if (c.width > 8000 && dtype != DType::f32) continue;  // slow on a simulated device
      SCOPED_TRACE(Shape({c.n, c.seq, c.width}).to_string());
      const Pass r = run(*backend, c, dtype);
      const auto x = r.x.floats(), sum = r.sum.floats(), dy = r.dy.floats(), dsum = r.dsum.floats();
      const auto residual = c.residual ? r.residual.floats() : std::vector<float>(x.size(), 0.0f);
      const auto gamma = r.gamma.values(), beta = r.beta.values();
      const auto factor = factors(c);
      const auto width = static_cast<std::size_t>(c.width);
      std::vector<double> want_sum(x.size()), want_y(x.size()), want_dsum(x.size()), want_dx(x.size());
      std::vector<double> want_dgamma(width), want_dbeta(width), size_of_terms(width, 1);
      for (std::size_t i = 0; i < x.size(); ++i) {
        want_sum[i] = static_cast<double>(x[i]) * factor[i] + static_cast<double>(residual[i]);
        want_dx[i] = static_cast<double>(dsum[i]) * factor[i];
      }
      for (std::size_t row = 0; row < x.size(); row += width) {
        double mean = 0, variance = 0, scaled = 0, product = 0;
        for (std::size_t i = 0; i < width; ++i) mean += static_cast<double>(sum[row + i]) / double(width);
        for (std::size_t i = 0; i < width; ++i) {
          variance += std::pow(static_cast<double>(sum[row + i]) - mean, 2) / double(width);
        }
        const double rstd = 1 / std::sqrt(variance + eps);
        const auto normal = [&](std::size_t i) { return (static_cast<double>(sum[row + i]) - mean) * rstd; };
        const auto slope = [&](std::size_t i) {
          return static_cast<double>(dy[row + i]) * static_cast<double>(gamma[i]);
        };
        for (std::size_t i = 0; i < width; ++i) {
          want_y[row + i] = normal(i) * static_cast<double>(gamma[i]) + static_cast<double>(beta[i]);
          scaled += slope(i) / double(width), product += slope(i) * normal(i) / double(width);
          want_dgamma[i] += static_cast<double>(dy[row + i]) * normal(i);
          want_dbeta[i] += static_cast<double>(dy[row + i]);
          size_of_terms[i] += std::abs(static_cast<double>(dy[row + i])) * (1 + std::abs(normal(i)));
        }
        for (std::size_t i = 0; i < width; ++i) {
          want_dsum[row + i] = rstd * (slope(i) - scaled - normal(i) * product);
        }
      }
      const double relative = rounding(dtype);
      expect_within(r.sum.floats(), want_sum, relative, 1e-6);
      expect_within(r.y.floats(), want_y, relative, 5e-6);
      expect_within(dsum, want_dsum, relative, c.width == 1 ? 2e-3 : 2e-5);
      expect_within(r.dx.floats(), want_dx, relative, dtype == DType::f16 ? 3e-8 : 0);  // half a subnormal
      expect_close(r.dgamma.values(), want_dgamma, size_of_terms, 4e-6);
      expect_close(r.dbeta.values(), want_dbeta, size_of_terms);
    }
  }
}

TEST_P(LayerNormTest, gradients_of_parameters_are_added_when_asked) {
  const LayerNormCase c{3, 7, 33, 0.25, true};
  const Pass r = run(*backend, c, DType::f32);
  const Tensor dgamma = tensor(std::vector<float>(33, 2.0f), {33}),
               dbeta = tensor(std::vector<float>(33, 3.0f), {33});
  backend->add_layer_norm_backward({key, first_slot, c.probability}, r.dy, r.sum, r.mean, r.rstd, r.gamma,
                                   r.dsum, r.dx, dgamma, dbeta, true);
  const auto got_gamma = dgamma.values(), got_beta = dbeta.values();
  for (std::size_t i = 0; i < 33; ++i) {
    EXPECT_EQ(got_gamma[i], r.dgamma.values()[i] + 2.0f);
    EXPECT_EQ(got_beta[i], r.dbeta.values()[i] + 3.0f);
  }
}

TEST_P(LayerNormTest, views_may_share_memory) {
  for (const DType dtype : element_types(*backend)) {
    const LayerNormCase c{3, 7, 33, 0.25, true};
    const Pass r = run(*backend, c, dtype);
    const DropoutMask mask{key, first_slot, c.probability};
    const Shape tokens{c.n, c.seq};
    for (const bool into_residual : {false, true}) {
      const Tensor x = typed(dtype, r.x.floats(), r.x.shape()),
                   residual = typed(dtype, r.residual.floats(), r.x.shape());
      const Tensor y = junk(r.x.shape(), dtype), mean = junk(tokens), rstd = junk(tokens);
      const View sum = into_residual ? residual.view() : x.view();
      backend->add_layer_norm_forward(mask, x, residual, r.gamma, r.beta, eps, sum, y, mean, rstd);
      EXPECT_EQ((into_residual ? residual : x).floats(), r.sum.floats());
      EXPECT_EQ(y.floats(), r.y.floats());
    }
    const Tensor dy = typed(dtype, r.dy.floats(), r.x.shape()), dx = junk(r.x.shape(), dtype);
    const Tensor dgamma = junk({c.width}), dbeta = junk({c.width});
    backend->add_layer_norm_backward(mask, dy, r.sum, r.mean, r.rstd, r.gamma, dy, dx, dgamma, dbeta, false);
    EXPECT_EQ(dy.floats(), r.dsum.floats()) << "dsum is dy";
    EXPECT_EQ(dx.floats(), r.dx.floats());
    const Tensor both = junk(r.x.shape(), dtype);
    backend->add_layer_norm_backward(mask, r.dy, r.sum, r.mean, r.rstd, r.gamma, both, both, dgamma, dbeta,
                                     false);
    EXPECT_EQ(both.floats(), r.dx.floats()) << "dx is dsum";
    EXPECT_EQ(dgamma.values(), r.dgamma.values());
    backend->add_layer_norm_backward(mask, r.dy, r.sum, r.mean, r.rstd, r.gamma, both, {}, dgamma, dbeta,
                                     false);
    EXPECT_EQ(both.floats(), r.dsum.floats()) << "without dx";
  }
}

TEST_P(LayerNormTest, gradients_of_parameters_are_summed_over_many_rows) {
  const LayerNormCase c{3, 1500, 8, 0, false};
  const Pass r = run(*backend, c, DType::f32);
  const auto dy = r.dy.values(), sum = r.sum.values(), mean = r.mean.values(), rstd = r.rstd.values();
  std::vector<double> dgamma(8), dbeta(8), size_of_terms(8);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const double normal =
        (static_cast<double>(sum[i]) - static_cast<double>(mean[i / 8])) * static_cast<double>(rstd[i / 8]);
    dgamma[i % 8] += static_cast<double>(dy[i]) * normal;
    dbeta[i % 8] += static_cast<double>(dy[i]);
    size_of_terms[i % 8] += std::abs(static_cast<double>(dy[i])) * (1 + std::abs(normal));
  }
  expect_close(r.dgamma.values(), dgamma, size_of_terms);
  expect_close(r.dbeta.values(), dbeta, size_of_terms);
}

TEST_P(LayerNormTest, views_may_begin_anywhere) {
  for (const DType dtype : element_types(*backend)) {
    const LayerNormCase c{2, 3, 64, 0.25, true};
    const Pass r = run(*backend, c, dtype);
    std::vector<Tensor> kept;
    // The same values one element further on.
    const auto shifted = [&](const Tensor& from) -> View {
      auto values = from.floats();
      const DType type = from.view().dtype;
      values.insert(values.begin(), 0.0f);
      kept.push_back(typed(type, values, {static_cast<std::int64_t>(values.size())}));
      return {static_cast<std::byte*>(kept.back().view().data) + size_of(type), type, from.shape()};
    };
    const auto values_of = [&](const Tensor& whole) {
      auto values = whole.floats();
      values.erase(values.begin());
      return std::vector<double>(values.begin(), values.end());
    };
    const View x = shifted(r.x), residual = shifted(r.residual), dy = shifted(r.dy);
    const View gamma = shifted(r.gamma), beta = shifted(r.beta);
    const Tensor mean = junk({c.n, c.seq}), rstd = junk({c.n, c.seq}), dgamma = junk({64}),
                 dbeta = junk({64});
    const std::size_t first_output = kept.size();
    const View sum = shifted(r.dy), y = shifted(r.dy), dsum = shifted(r.x), dx = shifted(r.x);
    const DropoutMask mask{key, first_slot, c.probability};
    backend->add_layer_norm_forward(mask, x, residual, gamma, beta, eps, sum, y, mean, rstd);
    backend->add_layer_norm_backward(mask, dy, sum, mean, rstd, gamma, dsum, dx, dgamma, dbeta, false);
    const double near = dtype == DType::f32 ? 1e-6 : rounding(dtype);
    expect_within(r.sum.floats(), values_of(kept[first_output]), 0, 0);
    expect_within(r.y.floats(), values_of(kept[first_output + 1]), 2 * near, 2e-6);
    expect_within(r.dsum.floats(), values_of(kept[first_output + 2]), 2 * near, 5e-6);
    expect_within(r.dx.floats(), values_of(kept[first_output + 3]), 2 * near, 5e-6);
    const auto of_gamma = dgamma.floats(), of_beta = dbeta.floats();
    expect_within(r.dgamma.floats(), {of_gamma.begin(), of_gamma.end()}, 1e-6, 1e-5);
    expect_within(r.dbeta.floats(), {of_beta.begin(), of_beta.end()}, 1e-6, 1e-5);
  }
}

TEST_P(LayerNormTest, samples_can_be_split_into_calls) {
  const LayerNormCase c{4, 5, 33, 0.5, true};
  const Pass r = run(*backend, c, DType::f32);
  const std::int64_t sample = c.seq * c.width;
  const auto part = [](const Tensor& t, std::int64_t begin, std::int64_t size) {
    return t.view().as<float>() + begin * size;
  };
  const Tensor sum = junk(r.x.shape()), y = junk(r.x.shape()), mean = junk({c.n, c.seq}),
               rstd = junk({c.n, c.seq});
  for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 3}}) {
    const Shape shape{count, c.seq, c.width}, tokens{count, c.seq};
    backend->add_layer_norm_forward(
        {key, first_slot + static_cast<std::uint32_t>(begin), c.probability},
        view_of(part(r.x, begin, sample), shape), view_of(part(r.residual, begin, sample), shape), r.gamma,
        r.beta, eps, view_of(part(sum, begin, sample), shape), view_of(part(y, begin, sample), shape),
        view_of(part(mean, begin, c.seq), tokens), view_of(part(rstd, begin, c.seq), tokens));
  }
  EXPECT_EQ(sum.values(), r.sum.values());
  EXPECT_EQ(y.values(), r.y.values());
}

TEST_P(LayerNormTest, no_samples_give_zero_gradients) {
  const LayerNormCase c{0, 7, 33, 0.25, true};
  const Pass r = run(*backend, c, DType::f32);
  EXPECT_EQ(r.dgamma.values(), std::vector<float>(33, 0.0f));
  EXPECT_EQ(r.dbeta.values(), std::vector<float>(33, 0.0f));
}

TEST(CpuLayerNorm, has_the_same_bits_on_any_number_of_threads) {
  const LayerNormCase c{5, 40, 130, 0.1, true};
  const auto first_backend = make_cpu_backend(1);
  const Pass first = run(*first_backend, c, DType::f32);
  for (const int threads : {1, 2, 3, 5}) {
    const auto backend = make_cpu_backend(threads);
    const Pass again = run(*backend, c, DType::f32);
    EXPECT_EQ(again.y.values(), first.y.values());
    EXPECT_EQ(again.dx.values(), first.dx.values());
    EXPECT_EQ(again.dgamma.values(), first.dgamma.values());
    EXPECT_EQ(again.dbeta.values(), first.dbeta.values());
  }
}

TEST_P(LayerNormTest, wrong_arguments_are_refused_by_name) {
  const Pass r = run(*backend, {2, 3, 4, 0, true}, DType::f32);
  expect_refused(
      [&] {
        backend->add_layer_norm_forward({}, r.x, r.residual, r.gamma, zeros({5}), eps, r.sum, r.y, r.mean,
                                        r.rstd);
      },
      {"add_layer_norm_forward", "beta", "[5]"});
  expect_refused(
      [&] {
        backend->add_layer_norm_forward({key, 0, 1.0}, r.x, {}, r.gamma, r.beta, eps, r.sum, r.y, r.mean,
                                        r.rstd);
      },
      {"add_layer_norm_forward", "probability"});
  expect_refused(
      [&] {
        backend->add_layer_norm_backward({}, r.dy, junk({2, 3, 4}, DType::bf16), r.mean, r.rstd, r.gamma,
                                         r.dsum, {}, r.dgamma, r.dbeta, false);
      },
      {"add_layer_norm_backward", "sum", "bfloat16"});
}

}  // namespace
}  // namespace motley::test
