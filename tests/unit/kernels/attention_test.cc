#include "backend_test.h"

namespace motley::test {
namespace {

const RandomKey key(0x123456789abcULL, Purpose::dropout, 3, 17);

struct AttentionCase {
  std::int64_t n, seq, heads, dim;
  double probability;
  std::vector<std::int64_t> lengths;  // keys of each sample; a hole is cut into those with more than 3
};
const AttentionCase cases[] = {{3, 7, 3, 5, 0.25, {7, 0, 4}},
                               {1, 1, 1, 1, 0, {1}},
                               {2, 65, 2, 8, 0.1, {65, 33}},
                               {1, 130, 1, 64, 0.5, {130}},
                               {2, 16, 2, 4, 0, {16, 2}}};
constexpr std::uint32_t first_slot = 40;

struct Pass {
  Tensor qkv, mask, dcontext, context, log_sum_exp, dqkv;
};

std::vector<std::uint8_t> mask_of(const AttentionCase& c) {
  std::vector<std::uint8_t> mask;
  for (const std::int64_t length : c.lengths) {
    for (std::int64_t k = 0; k < c.seq; ++k) mask.push_back(k < length && !(length > 3 && k == 1) ? 1 : 0);
  }
  return mask;
}

Pass run(Backend& backend, const AttentionCase& c, DType dtype) {
  const Shape inputs{c.n, c.seq, 3, c.heads, c.dim}, outputs{c.n, c.seq, c.heads * c.dim};
  const auto filled = [&](const Shape& shape, std::uint32_t stream) {
    return typed(backend, dtype, random_values(shape.elements(), stream, -2, 2), shape);
  };
  Pass r;
  r.qkv = filled(inputs, 1), r.dcontext = filled(outputs, 2);
  r.mask = Tensor(backend, mask_of(c), {c.n, c.seq});
  r.context = filled(outputs, 3), r.dqkv = filled(inputs, 4);
  r.log_sum_exp = Tensor(backend, DType::f32, {c.n, c.heads, c.seq});
  const Attention attention{c.heads, {key, first_slot, c.probability}};
  backend.attention_forward(attention, r.qkv, r.mask, r.context, r.log_sum_exp);
  backend.attention_backward(attention, r.qkv, r.mask, r.context, r.log_sum_exp, r.dcontext, r.dqkv);
  return r;
}

struct Reference {
  std::vector<double> context, dqkv;
};

// The definition in float64, term by term.
Reference reference(const AttentionCase& c, const Pass& r) {
  const auto qkv = r.qkv.floats(), gradient = r.dcontext.floats();
  const auto mask = mask_of(c);
  Reference want{std::vector<double>(gradient.size()), std::vector<double>(qkv.size())};
  const auto at = [&](std::int64_t n, std::int64_t s, int part, std::int64_t h, std::int64_t d) {
    return static_cast<std::size_t>((((n * c.seq + s) * 3 + part) * c.heads + h) * c.dim + d);
  };
  const auto out_at = [&](std::int64_t n, std::int64_t s, std::int64_t h, std::int64_t d) {
    return static_cast<std::size_t>(((n * c.seq + s) * c.heads + h) * c.dim + d);
  };
  const auto value = [](const std::vector<float>& v, std::size_t i) { return static_cast<double>(v[i]); };
  const double scale = 1 / std::sqrt(static_cast<double>(c.dim));
  for (std::int64_t n = 0; n < c.n; ++n) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t q = 0; q < c.seq; ++q) {
        const auto seq = static_cast<std::size_t>(c.seq);
        std::vector<double> p(seq), factor(seq), dp(seq);
        double total = 0, mean = 0;
        for (std::size_t k = 0; k < seq; ++k) {
          if (mask[static_cast<std::size_t>(n) * seq + k] == 0) continue;
          double score = 0;
          for (std::int64_t d = 0; d < c.dim; ++d) {
            score += value(qkv, at(n, q, 0, h, d)) * value(qkv, at(n, static_cast<std::int64_t>(k), 1, h, d));
          }
          total += p[k] = std::exp(score * scale);
          const auto element =
              static_cast<std::uint32_t>((h * c.seq + q) * c.seq) + static_cast<std::uint32_t>(k);
          const auto slot = first_slot + static_cast<std::uint32_t>(n);
          factor[k] =
              random_u32(key, slot, element) < drop_threshold(c.probability) ? 0 : 1 / (1 - c.probability);
        }
        for (std::size_t k = 0; k < seq && total > 0; ++k) {
          p[k] /= total;
          for (std::int64_t d = 0; d < c.dim; ++d) {
            const std::size_t v = at(n, static_cast<std::int64_t>(k), 2, h, d), o = out_at(n, q, h, d);
            want.context[o] += p[k] * factor[k] * value(qkv, v);
            want.dqkv[v] += p[k] * factor[k] * value(gradient, o);
            dp[k] += factor[k] * value(gradient, o) * value(qkv, v);
          }
          mean += p[k] * dp[k];
        }
        for (std::size_t k = 0; k < seq && total > 0; ++k) {
          const double ds = p[k] * (dp[k] - mean) * scale;
          for (std::int64_t d = 0; d < c.dim; ++d) {
            const std::size_t query = at(n, q, 0, h, d), other = at(n, static_cast<std::int64_t>(k), 1, h, d);
            want.dqkv[query] += ds * value(qkv, other);
            want.dqkv[other] += ds * value(qkv, query);
          }
        }
      }
    }
  }
  return want;
}

class AttentionTest : public BackendTest {};
MOTLEY_ON_EVERY_BACKEND(AttentionTest);

TEST_P(AttentionTest, is_the_definition_in_float64_with_masks_and_dropout) {
  for (const DType dtype : element_types(*backend)) {
    for (const AttentionCase& c : cases) {
      SCOPED_TRACE(Shape({c.n, c.seq, c.heads, c.dim}).to_string());
      const Pass r = run(*backend, c, dtype);
      const Reference want = reference(c, r);
      const double absolute = dtype == DType::f32 ? 2e-5 : 0.01;
      expect_within(r.context.floats(), want.context, rounding(dtype), absolute);
      expect_within(r.dqkv.floats(), want.dqkv, rounding(dtype), absolute);
    }
  }
}

TEST_P(AttentionTest, a_sample_without_keys_gets_zeros_and_no_gradient) {
  const AttentionCase c{2, 6, 2, 4, 0.5, {0, 6}};
  const Pass r = run(*backend, c, DType::f32);
  const auto context = r.context.values(), dqkv = r.dqkv.values();
  EXPECT_EQ(std::vector<float>(context.begin(), context.begin() + 48), std::vector<float>(48, 0.0f));
  EXPECT_EQ(std::vector<float>(dqkv.begin(), dqkv.begin() + 144), std::vector<float>(144, 0.0f));
  EXPECT_NE(context[48], 0.0f);
}

// Rows of so many keys are another kernel's on GPUs.
TEST_P(AttentionTest, a_long_sample_without_keys_gets_zeros_and_no_gradient) {
  const AttentionCase c{2, 1030, 1, 2, 0, {0, 1030}};
  const Pass r = run(*backend, c, DType::f32);
  const auto context = r.context.values(), dqkv = r.dqkv.values();
  const std::size_t one = 1030 * 2;
  EXPECT_EQ(std::vector<float>(context.data(), context.data() + one), std::vector<float>(one, 0.0f));
  EXPECT_EQ(std::vector<float>(dqkv.data(), dqkv.data() + 3 * one), std::vector<float>(3 * one, 0.0f));
  EXPECT_NE(context[one], 0.0f);
}

TEST_P(AttentionTest, samples_can_be_split_into_calls) {
  const AttentionCase c{4, 9, 2, 5, 0.5, {9, 3, 9, 8}};
  const Pass r = run(*backend, c, DType::f32);
  const Tensor context = junk(r.context.shape()), sums = zeros(r.log_sum_exp.shape()),
               dqkv = junk(r.qkv.shape());
  for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 3}}) {
    const auto part = [&, first = begin, samples = count](const Tensor& t) {
      Shape shape{samples};
      for (int i = 1; i < t.shape().rank(); ++i) shape.append(t.shape()[i]);
      auto* bytes = static_cast<std::byte*>(t.view().data);
      const auto offset =
          static_cast<std::size_t>(first * t.shape().elements_from(1)) * size_of(t.view().dtype);
      return View{bytes + offset, t.view().dtype, shape};
    };
    const Attention attention{c.heads, {key, first_slot + static_cast<std::uint32_t>(begin), c.probability}};
    backend->attention_forward(attention, part(r.qkv), part(r.mask), part(context), part(sums));
    backend->attention_backward(attention, part(r.qkv), part(r.mask), part(context), part(sums),
                                part(r.dcontext), part(dqkv));
  }
  // GPU libraries may choose other kernels for another number of samples.
  if (backend->device().kind == "cpu") {
    EXPECT_EQ(context.values(), r.context.values());
    EXPECT_EQ(dqkv.values(), r.dqkv.values());
  }
  expect_near(context.values(), r.context.values(), 2e-6);
  expect_near(dqkv.values(), r.dqkv.values(), 1e-5);
}

TEST_P(AttentionTest, rows_of_scores_have_any_length) {
  const AttentionCase long_rows[] = {{1, 190, 1, 8, 0.1, {190}},
                                     {1, 390, 1, 8, 0, {301}},
                                     {1, 903, 1, 8, 0.3, {903}},
                                     {1, 1028, 1, 8, 0.2, {1028}}};
  const std::vector<DType> types = element_types(*backend);
  std::size_t next = 0;
  for (const AttentionCase& c : long_rows) {
    SCOPED_TRACE(c.seq);
    const DType dtype = types[next++ % types.size()];
    const Pass r = run(*backend, c, dtype);
    const Reference want = reference(c, r);
    const double absolute = dtype == DType::f32 ? 2e-5 : 0.01;
    expect_within(r.context.floats(), want.context, rounding(dtype), absolute);
    expect_within(r.dqkv.floats(), want.dqkv, rounding(dtype), absolute);
  }
}

TEST_P(AttentionTest, views_may_begin_anywhere_and_the_same_call_gives_the_same_bits) {
  const AttentionCase c{2, 24, 2, 8, 0.3, {24, 9}};
  for (const DType dtype : element_types(*backend)) {
    const Pass r = run(*backend, c, dtype), again = run(*backend, c, dtype);
    EXPECT_EQ(again.context.floats(), r.context.floats());
    EXPECT_EQ(again.dqkv.floats(), r.dqkv.floats());
    const auto displaced = [&](const Tensor& t, std::vector<float> values) {
      values.insert(values.begin(), 0.0f);
      Tensor place = typed(dtype, values, {static_cast<std::int64_t>(values.size())});
      const View view{static_cast<std::byte*>(place.view().data) + size_of(dtype), dtype, t.shape()};
      return std::pair{std::move(place), view};
    };
    const auto qkv = displaced(r.qkv, r.qkv.floats()), dcontext = displaced(r.dcontext, r.dcontext.floats());
    const auto context = displaced(r.context, std::vector<float>(r.context.floats().size(), 7.0f)),
               dqkv = displaced(r.dqkv, std::vector<float>(r.dqkv.floats().size(), 7.0f));
    const Tensor sums = zeros(r.log_sum_exp.shape());
    const Attention attention{c.heads, {key, first_slot, c.probability}};
    backend->attention_forward(attention, qkv.second, r.mask, context.second, sums);
    backend->attention_backward(attention, qkv.second, r.mask, context.second, sums, dcontext.second,
                                dqkv.second);
    const auto values = [](const Tensor& t) {
      const auto all = t.floats();
      return std::vector<float>(all.begin() + 1, all.end());
    };
    const double tolerance = dtype == DType::f32 ? 1e-5 : 4 * rounding(dtype);
    expect_near(values(context.first), r.context.floats(), tolerance);
    expect_near(values(dqkv.first), r.dqkv.floats(), tolerance);
  }
}

TEST_P(AttentionTest, large_scores_do_not_overflow) {
  const AttentionCase c{1, 3, 1, 2, 0, {3}};
  Pass r = run(*backend, c, DType::f32);
  std::vector<float> qkv(18, 0.0f);
  for (std::size_t s = 0; s < 3; ++s) {
    qkv[s * 6] = 300;  // queries
    qkv[s * 6 + 2] =
        s == 1 ? 300.0f : -300.0f;  // keys: the second has a score of 63640, the others its negative
    qkv[s * 6 + 4] = static_cast<float>(s), qkv[s * 6 + 5] = 1;  // values
  }
  r.qkv = Tensor(*backend, qkv, r.qkv.shape());
  const Tensor context = junk({1, 3, 2});
  backend->attention_forward({1, {}}, r.qkv, Tensor(*backend, std::vector<std::uint8_t>{1, 1, 1}, {1, 3}),
                             context, r.log_sum_exp);
  EXPECT_EQ(context.values(), std::vector<float>(6, 1.0f));
}

TEST_P(AttentionTest, no_samples_are_fine) {
  const Pass r = run(*backend, {0, 7, 3, 5, 0.5, {}}, DType::f32);
  EXPECT_TRUE(r.context.values().empty());
}

TEST(CpuAttention, has_the_same_bits_on_any_number_of_threads) {
  const AttentionCase c{3, 70, 2, 8, 0.1, {70, 5, 66}};
  const auto first_backend = make_cpu_backend(1);
  const Pass first = run(*first_backend, c, DType::f32);
  for (const int threads : {1, 2, 3}) {
    const auto backend = make_cpu_backend(threads);
    const Pass again = run(*backend, c, DType::f32);
    EXPECT_EQ(again.context.values(), first.context.values());
    EXPECT_EQ(again.dqkv.values(), first.dqkv.values());
  }
}

TEST_P(AttentionTest, wrong_arguments_are_refused_by_name) {
  const Pass r = run(*backend, {2, 3, 2, 4, 0, {3, 3}}, DType::f32);
  expect_refused(
      [&] {
        backend->attention_forward({3, {}}, r.qkv, r.mask, r.context, r.log_sum_exp);
      },
      {"attention_forward", "qkv"});
  expect_refused(
      [&] {
        backend->attention_forward({2, {}}, r.qkv, zeros({2, 3}), r.context, r.log_sum_exp);
      },
      {"attention_forward", "key_mask", "uint8"});
  expect_refused(
      [&] {
        backend->attention_backward({2, {key, 0, 1}}, r.qkv, r.mask, r.context, r.log_sum_exp, r.dcontext,
                                    r.dqkv);
      },
      {"attention_backward", "probability"});
}

}  // namespace
}  // namespace motley::test
