#include "backend_test.h"

namespace motley::test {
namespace {

class LambTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(LambTest);

struct State {
  std::vector<double> param, mean, square;
};

// Algorithm 2 of the paper, with bias correction, in float64.
void reference_step(const LambOptions& o, const Segment& s, const std::vector<float>& grad, double scale,
                    State& t) {
  std::vector<double> direction(s.elements);
  double param_norm = 0, direction_norm = 0;
  for (std::size_t i = 0; i < s.elements; ++i) {
    const std::size_t at = s.offset + i;
    const double g = static_cast<double>(grad[at]) * scale;
    t.mean[at] = o.beta1 * t.mean[at] + (1 - o.beta1) * g;
    t.square[at] = o.beta2 * t.square[at] + (1 - o.beta2) * g * g;
    const auto step = static_cast<double>(o.step);
    const double m = t.mean[at] / (1 - std::pow(o.beta1, step)),
                 v = t.square[at] / (1 - std::pow(o.beta2, step));
    direction[i] = m / (std::sqrt(v) + o.eps) + s.weight_decay * t.param[at];
    param_norm += t.param[at] * t.param[at];
    direction_norm += direction[i] * direction[i];
  }
  double trust = std::sqrt(param_norm) / std::sqrt(direction_norm);
  if (!s.adapts || param_norm == 0 || direction_norm == 0) trust = 1;
  for (std::size_t i = 0; i < s.elements; ++i) t.param[s.offset + i] -= o.lr * trust * direction[i];
}

TEST_P(LambTest, ten_steps_are_those_of_the_algorithm_in_float64) {
  constexpr std::int64_t count = 40100;
  // Decayed, neither decayed nor adapted, parameters of zero, padding between them, longer than a block, adapted
  // without decay.
  const std::vector<Segment> segments{
      {0, 41, 0.01}, {48, 7, 0, false}, {64, 16, 0.1}, {96, 30000, 0.01}, {30112, 9984, 0}};
  auto start = random_values(count, 1);
  std::fill_n(start.begin() + 64, 16, 0.0f);
  const Tensor param = tensor(start, {count}), mean = zeros({count}), square = zeros({count});
  const Tensor scale = tensor({0.5f, 0.0f}, {2});
  State want{std::vector<double>(start.begin(), start.end()), std::vector<double>(count),
             std::vector<double>(count)};
  LambOptions options{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.99};
  for (options.step = 1; options.step <= 10; ++options.step) {
    const Tensor grad = random({count}, 10 + static_cast<std::uint32_t>(options.step));
    backend->lamb_step(options, segments, grad, scale, param, mean, square);
    for (const Segment& s : segments) reference_step(options, s, grad.values(), 0.5, want);
  }
  expect_within(param.values(), want.param, 1e-6, 2e-6);
  expect_within(mean.values(), want.mean, 1e-6, 1e-6);
  expect_within(square.values(), want.square, 2e-6, 1e-7);
  for (const std::size_t padding : {41u, 55u, 80u, 40099u}) {
    EXPECT_EQ(param.values()[padding], start[padding]);
    EXPECT_EQ(mean.values()[padding], 0.0f);
  }
}

TEST_P(LambTest, tensors_may_begin_anywhere_and_may_be_empty) {
  constexpr std::int64_t count = 9000;
  const std::vector<Segment> segments{{0, 0, 0}, {1, 6, 0.1},     {7, 0, 0.1},   {9, 5001, 0.01},
                                      {5010, 1}, {5012, 3000, 0}, {9000, 0, 0.1}};
  const auto start = random_values(count, 1), gradients = random_values(count, 2);
  // Neither is a multiple of 16 bytes away from the start of its memory in the second round.
  for (const std::int64_t first : {0, 1}) {
    const Tensor param(*backend, DType::f32, {count + first}), grad(*backend, DType::f32, {count + first});
    const Tensor mean = zeros({count}), square = zeros({count}), scale = tensor({2.0f}, {1});
    const View p = view_of(param.view().as<float>() + first, {count}),
               g = view_of(grad.view().as<float>() + first, {count});
    backend->copy_to_device(p.data, start.data(), p.bytes());
    backend->copy_to_device(g.data, gradients.data(), g.bytes());
    State want{std::vector<double>(start.begin(), start.end()), std::vector<double>(count),
               std::vector<double>(count)};
    const LambOptions options{.lr = 0.02};
    backend->lamb_step(options, segments, g, scale, p, mean, square);
    for (const Segment& s : segments) reference_step(options, s, gradients, 2, want);
    auto got = param.values();
    got.erase(got.begin(), got.begin() + first);
    expect_within(got, want.param, 1e-6, 2e-6);
    expect_within(mean.values(), want.mean, 1e-6, 1e-6);
    for (const std::size_t padding : {0u, 8u, 5011u, 8999u}) EXPECT_EQ(got[padding], start[padding]);
  }
}

TEST(CpuLamb, has_the_same_bits_on_any_number_of_threads) {
  constexpr std::int64_t count = 100003;
  const std::vector<Segment> segments{{0, 90000, 0.01}, {90000, 10003, 0.01}};
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 7}) {
    const auto backend = make_cpu_backend(threads);
    const Tensor param(*backend, random_values(count, 1), {count}),
        grad(*backend, random_values(count, 2), {count});
    const Tensor mean(*backend, DType::f32, {count}), square(*backend, DType::f32, {count});
    backend->lamb_step({.lr = 0.1}, segments, grad, Tensor(*backend, std::vector<float>{1}, {1}), param, mean,
                       square);
    if (threads == 1) first = param.values();
    EXPECT_EQ(param.values(), first);
  }
}

TEST_P(LambTest, segments_must_fit_and_be_in_order) {
  const Tensor ten = zeros({10}), scale = tensor({1.0f}, {1});
  const auto step = [&](const std::vector<Segment>& segments) {
    backend->lamb_step({.lr = 0.1}, segments, ten, scale, ten, ten, ten);
  };
  expect_refused([&] { step({{8, 3, 0}}); }, {"lamb_step", "3 elements at 8", "10"});
  expect_refused([&] { step({{11, 0, 0}}); }, {"lamb_step"});
  expect_refused([&] { step({{0, 5, 0}, {4, 2, 0}}); }, {"lamb_step", "behind 5"});
}

}  // namespace
}  // namespace motley::test
