// Operations of BERT-large on its tokens that are no products of matrices, and attention.
#include <algorithm>
#include <set>

#include "core/philox.h"
#include "kernel_bench.h"
#include "kernels/row_groups.h"

namespace motley::bench {
namespace {

constexpr std::int64_t checked_rows = 2;

DropoutMask mask_from(std::int64_t first) {
  return {RandomKey(1, Purpose::dropout, 3, 7), static_cast<std::uint32_t>(first), 0.1};
}

double size_in_bytes(const Shape& shape, DType type) {
  return static_cast<double>(shape.elements()) * static_cast<double>(size_of(type));
}

std::vector<std::int32_t> ids_below(std::int64_t limit, std::int64_t count) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<std::int32_t>(i * 2654435761 % 4294967311 % limit));
  return ids;
}

double distinct(const std::vector<std::int32_t>& ids) {
  return static_cast<double>(std::set<std::int32_t>(ids.begin(), ids.end()).size());
}

double worst(std::initializer_list<RelativeError> errors) {
  double most = 0;
  for (const RelativeError& error : errors) most = std::max(most, error.value());
  return most;
}

constexpr double layer_norm_eps = 1e-12;

void add_layer_norm_forward(Bench& bench, DType type) {
  const TokenSizes size(bench);
  const Shape shape{size.n, size.seq, size.hidden}, row_shape{size.n, size.seq};
  const double bytes = 4 * size_in_bytes(shape, type) + 2 * size_in_bytes(row_shape, DType::f32);
  struct Set {
    View x, residual, sum, y, mean, rstd;
  };
  Tensors tensors(bench.backend());
  const View gamma = tensors.random({size.hidden}), beta = tensors.random({size.hidden});
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type), residual = tensors.random(shape, type),
               sum = tensors.poisoned(shape, type), y = tensors.poisoned(shape, type),
               mean = tensors.poisoned(row_shape);
    return Set{x, residual, sum, y, mean, tensors.poisoned(row_shape)};
  });
  bench.measure(
      {"add_layer_norm_forward", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().add_layer_norm_forward(mask_from(0), s.x, s.residual, gamma, beta, layer_norm_eps,
                                               s.sum, s.y, s.mean, s.rstd);
      },
      [&] {
        RelativeError sum_error, y_error, mean_error, rstd_error;
        Host host_gamma(bench.backend(), gamma), host_beta(bench.backend(), beta);
        for (const std::int64_t first : both_ends(size.n, checked_rows)) {
          const auto got = [&](const View& whole) {
            return Host(bench.backend(), rows_of(whole, first, checked_rows));
          };
          Host x = got(sets[0].x), residual = got(sets[0].residual), sum(x.shape), y(x.shape),
               mean(row_shape.without_batch().with_batch(checked_rows)), rstd(mean.shape);
          bench.reference().add_layer_norm_forward(mask_from(first), x, residual, host_gamma, host_beta,
                                                   layer_norm_eps, sum, y, mean, rstd);
          sum_error.add(got(sets[0].sum).values, sum.values);
          y_error.add(got(sets[0].y).values, y.values);
          rstd_error.add(got(sets[0].rstd).values, rstd.values);
          // Means are near 0: judged by the size of what they are the mean of.
          mean_error.add(got(sets[0].mean).values, mean.values);
          mean_error.add(rstd.values, rstd.values);
        }
        return worst({sum_error, y_error, mean_error, rstd_error});
      });
}

void add_layer_norm_backward(Bench& bench, DType type) {
  const TokenSizes size(bench);
  const Shape shape{size.n, size.seq, size.hidden}, row_shape{size.n, size.seq};
  const double bytes = 4 * size_in_bytes(shape, type) + 2 * size_in_bytes(row_shape, DType::f32);
  struct Set {
    View dy, sum, mean, rstd, dsum, dx;
  };
  Tensors tensors(bench.backend());
  const View gamma = tensors.random({size.hidden}), beta = tensors.zeros({size.hidden}),
             dgamma = tensors.poisoned({size.hidden}), dbeta = tensors.poisoned({size.hidden});
  const auto sets = make_sets(bench, bytes, [&] {
    const View dy = tensors.random(shape, type), sum = tensors.random(shape, type),
               mean = tensors.zeros(row_shape), rstd = tensors.zeros(row_shape);
    const View dsum = tensors.poisoned(shape, type), dx = tensors.poisoned(shape, type);
    bench.backend().add_layer_norm_forward({}, sum, {}, gamma, beta, layer_norm_eps, sum, dsum, mean, rstd);
    return Set{dy, sum, mean, rstd, dsum, dx};
  });
  bench.measure(
      {"add_layer_norm_backward", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().add_layer_norm_backward(mask_from(0), s.dy, s.sum, s.mean, s.rstd, gamma, s.dsum,
                                                s.dx, dgamma, dbeta, false);
      },
      [&] {
        // All of it: the gradients of gamma and beta are sums over all tokens.
        Host dy(bench.backend(), sets[0].dy), sum(bench.backend(), sets[0].sum),
            mean(bench.backend(), sets[0].mean), rstd(bench.backend(), sets[0].rstd),
            host_gamma(bench.backend(), gamma), dsum(shape), dx(shape), want_gamma(gamma.shape),
            want_beta(gamma.shape);
        bench.reference().add_layer_norm_backward(mask_from(0), dy, sum, mean, rstd, host_gamma, dsum, dx,
                                                  want_gamma, want_beta, false);
        RelativeError dsum_error, dx_error, gamma_error, beta_error;
        dsum_error.add(Host(bench.backend(), sets[0].dsum).values, dsum.values);
        dx_error.add(Host(bench.backend(), sets[0].dx).values, dx.values);
        gamma_error.add(Host(bench.backend(), dgamma).values, want_gamma.values);
        beta_error.add(Host(bench.backend(), dbeta).values, want_beta.values);
        return worst({dsum_error, dx_error, gamma_error, beta_error});
      });
}

void embedding_forward(Bench& bench, DType type) {
  const TokenSizes size(bench);
  const Shape ids_shape{size.n, size.seq}, shape{size.n, size.seq, size.hidden};
  const std::vector<std::int32_t> host_ids = ids_below(size.words, size.tokens),
                                  host_types = ids_below(2, size.tokens);
  const double rows = distinct(host_ids) + static_cast<double>(size.seq) + 2;
  const double bytes = size_in_bytes(shape, type) + 2 * size_in_bytes(ids_shape, DType::i32) +
                       rows * static_cast<double>(size.hidden) * sizeof(float);
  Tensors tensors(bench.backend());
  const View word = tensors.random({size.words, size.hidden}), position = tensors.random({512, size.hidden}),
             kind = tensors.random({2, size.hidden}), ids = tensors.values(host_ids, ids_shape),
             types = tensors.values(host_types, ids_shape);
  const auto results = make_sets(bench, bytes, [&] { return tensors.poisoned(shape, type); });
  bench.measure(
      {"embedding_forward", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        bench.backend().embedding_forward(word, position, kind, ids, types, results[i % results.size()]);
      },
      [&] {
        Host host_word(bench.backend(), word), host_position(bench.backend(), position),
            host_kind(bench.backend(), kind);
        RelativeError error;
        for (const std::int64_t first : both_ends(size.n, checked_rows)) {
          const Shape part{checked_rows, size.seq};
          Host want(shape.without_batch().with_batch(checked_rows));
          bench.reference().embedding_forward(host_word, host_position, host_kind,
                                              view_of(host_ids.data() + first * size.seq, part),
                                              view_of(host_types.data() + first * size.seq, part), want);
          error.add(Host(bench.backend(), rows_of(results[0], first, checked_rows)).values, want.values);
        }
        return error.value();
      });
}

// The masked tokens out of all.
void gather_rows(Bench& bench, DType type) {
  const TokenSizes size(bench);
  std::vector<std::int32_t> rows;
  for (std::int64_t i = 0; i < size.masked; ++i)
    rows.push_back(static_cast<std::int32_t>(i * size.tokens / size.masked));
  const Shape shape{size.masked, size.hidden};
  const double bytes = 2 * size_in_bytes(shape, type) + 4 * static_cast<double>(size.masked);
  struct Set {
    View x, y;
  };
  Tensors tensors(bench.backend());
  const View index = tensors.values(rows, {size.masked});
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random({size.tokens, size.hidden}, type);
    return Set{x, tensors.poisoned(shape, type)};
  });
  bench.measure(
      {"gather_rows", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        bench.backend().gather_rows(sets[i % sets.size()].x, index, sets[i % sets.size()].y);
      },
      [&] {
        Host x(bench.backend(), sets[0].x), want(shape);
        bench.reference().gather_rows(x, view_of(rows.data(), {size.masked}), want);
        RelativeError error;
        error.add(Host(bench.backend(), sets[0].y).values, want.values);
        return error.value();
      });
}

// The gradient of the table of words.
void scatter_add_rows(Bench& bench, DType type) {
  const TokenSizes size(bench);
  const std::vector<std::int32_t> ids = ids_below(size.words, size.tokens);
  HostRowGroups host;
  group_rows(ids, host);
  const double bytes =
      size_in_bytes({size.tokens, size.hidden}, type) +
      2 * static_cast<double>(host.rows.size() * static_cast<std::size_t>(size.hidden)) * sizeof(float);
  Tensors tensors(bench.backend());
  const auto ints = [](const std::vector<std::int32_t>& values) { return Shape{std::ssize(values)}; };
  const RowGroups groups{tensors.values(host.rows, ints(host.rows)),
                         tensors.values(host.starts, ints(host.starts)),
                         tensors.values(host.sources, ints(host.sources))};
  const RowGroups host_groups{view_of(host.rows), view_of(host.starts), view_of(host.sources)};
  struct Set {
    View dy, x;
  };
  const auto sets = make_sets(bench, bytes, [&] {
    const View dy = tensors.random({size.tokens, size.hidden}, type);
    return Set{dy, tensors.zeros({size.words, size.hidden})};
  });
  bench.measure(
      {"scatter_add_rows", type, fmt::format("[{}, {}]", size.tokens, size.hidden), bytes},
      [&](std::size_t i) {
        bench.backend().scatter_add_rows(groups, sets[i % sets.size()].dy, sets[i % sets.size()].x);
      },
      [&] {
        Host dy(bench.backend(), sets[0].dy), want(sets[0].x.shape);
        bench.reference().scatter_add_rows(host_groups, dy, want);
        RelativeError error;
        error.add(Host(bench.backend(), sets[0].x).values, want.values);
        return error.value();
      });
}

// Of the masked tokens over all words; T is the type of the gradient.
void softmax_nll(Bench& bench, DType type) {
  const TokenSizes size(bench);
  const Shape shape{size.masked, size.words};
  const double bytes = size_in_bytes(shape, DType::f32) + size_in_bytes(shape, type);
  std::vector<std::int32_t> host_labels = ids_below(size.words, size.masked);
  host_labels.back() = -1;
  struct Set {
    View logits, dlogits;
  };
  Tensors tensors(bench.backend());
  const View labels = tensors.values(host_labels, {size.masked}), sums = tensors.zeros({4}, DType::f64);
  const auto sets = make_sets(bench, bytes, [&] {
    const View logits = tensors.random(shape, DType::f32, 4);
    return Set{logits, tensors.poisoned(shape, type)};
  });
  bench.measure(
      {"softmax_nll", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().softmax_nll(s.logits, labels, 1, sums, s.dlogits);
      },
      [&] {
        Host logits(bench.backend(), sets[0].logits), dlogits(shape);
        std::vector<double> want(4);
        bench.reference().softmax_nll(logits, view_of(host_labels), 1, view_of(want), dlogits);
        const auto got = on_host<double>(bench.backend(), sums);
        RelativeError sums_error, gradient_error;
        sums_error.add({got.begin(), got.end()}, {want.begin(), want.end()});
        gradient_error.add(Host(bench.backend(), sets[0].dlogits).values, dlogits.values);
        return worst({sums_error, gradient_error});
      });
}

struct AttentionSizes {
  AttentionSizes(const TokenSizes& size, std::int64_t seq_)
      : n(size.tokens / seq_),
        seq(seq_),
        qkv{n, seq, 3, size.heads, size.hidden / size.heads},
        context{n, seq, size.hidden},
        row_sums{n, size.heads, seq},
        product_flop(2 * static_cast<double>(context.elements()) * static_cast<double>(seq)) {}
  Attention attention(std::int64_t first) const { return {qkv[3], mask_from(first)}; }

  std::int64_t n, seq;
  Shape qkv, context, row_sums;
  double product_flop;  // of one product of [seq, dim] and [dim, seq], over all heads and samples
};

struct AttentionTensors {
  View qkv, keys, context, log_sum_exp, dcontext, dqkv;
};

// Against the CPU backend, for one sample at each end.
double attention_error(const Bench& bench, const AttentionSizes& size, const AttentionTensors& tensors) {
  RelativeError context_error, sums_error, gradient_error;
  for (const std::int64_t sample : both_ends(size.n, 1)) {
    const auto got = [&](const View& whole) { return Host(bench.backend(), rows_of(whole, sample, 1)); };
    const std::vector<std::uint8_t> keys(static_cast<std::size_t>(size.seq), 1);
    const ConstView mask = view_of(keys.data(), {1, size.seq});
    Host qkv = got(tensors.qkv), context(size.context.without_batch().with_batch(1)),
         sums(size.row_sums.without_batch().with_batch(1)), dqkv(qkv.shape);
    bench.reference().attention_forward(size.attention(sample), qkv, mask, context, sums);
    context_error.add(got(tensors.context).values, context.values);
    sums_error.add(got(tensors.log_sum_exp).values, sums.values);
    if (tensors.dqkv.empty()) continue;
    Host dcontext = got(tensors.dcontext);
    bench.reference().attention_backward(size.attention(sample), qkv, mask, context, sums, dcontext, dqkv);
    gradient_error.add(got(tensors.dqkv).values, dqkv.values);
  }
  if (tensors.dqkv.empty()) return worst({context_error, sums_error});
  return worst({context_error, sums_error, gradient_error});
}

AttentionTensors attention_inputs(const Bench& bench, Tensors& tensors, const AttentionSizes& size,
                                  DType type) {
  AttentionTensors t;
  t.qkv = tensors.random(size.qkv, type, 1.5f);
  t.keys = tensors.values(std::vector<std::uint8_t>(static_cast<std::size_t>(size.n * size.seq), 1),
                          {size.n, size.seq});
  t.context = tensors.poisoned(size.context, type);
  t.log_sum_exp = tensors.poisoned(size.row_sums);
  bench.backend().attention_forward(size.attention(0), t.qkv, t.keys, t.context, t.log_sum_exp);
  return t;
}

template <class Body>
void for_both_lengths(const Bench& bench, Body body) {
  const TokenSizes size(bench);
  body(AttentionSizes(size, size.seq));
  if (bench.size() != Size::tiny) body(AttentionSizes(size, 512));
}

void attention_forward(Bench& bench, DType type) {
  for_both_lengths(bench, [&](const AttentionSizes& size) {
    const double bytes = size_in_bytes(size.qkv, type) + size_in_bytes(size.context, type) +
                         size_in_bytes(size.row_sums, DType::f32);
    Tensors tensors(bench.backend());
    const auto sets = make_sets(bench, bytes, [&] { return attention_inputs(bench, tensors, size, type); });
    bench.measure(
        {"attention_forward", type, size.qkv.to_string(), bytes, 2 * size.product_flop},
        [&](std::size_t i) {
          const AttentionTensors& t = sets[i % sets.size()];
          bench.backend().attention_forward(size.attention(0), t.qkv, t.keys, t.context, t.log_sum_exp);
        },
        [&] { return attention_error(bench, size, sets[0]); });
  });
}

void attention_backward(Bench& bench, DType type) {
  for_both_lengths(bench, [&](const AttentionSizes& size) {
    const double bytes = 2 * size_in_bytes(size.qkv, type) + 2 * size_in_bytes(size.context, type) +
                         size_in_bytes(size.row_sums, DType::f32);
    Tensors tensors(bench.backend());
    const auto sets = make_sets(bench, bytes, [&] {
      AttentionTensors t = attention_inputs(bench, tensors, size, type);
      t.dcontext = tensors.random(size.context, type);
      t.dqkv = tensors.poisoned(size.qkv, type);
      return t;
    });
    bench.measure(
        {"attention_backward", type, size.qkv.to_string(), bytes, 5 * size.product_flop},
        [&](std::size_t i) {
          const AttentionTensors& t = sets[i % sets.size()];
          bench.backend().attention_backward(size.attention(0), t.qkv, t.keys, t.context, t.log_sum_exp,
                                             t.dcontext, t.dqkv);
        },
        [&] { return attention_error(bench, size, sets[0]); });
  });
}

}  // namespace

std::vector<Case> token_cases() {
  return {{"embedding_forward", embedding_forward, true},
          {"add_layer_norm_forward", add_layer_norm_forward, true},
          {"add_layer_norm_backward", add_layer_norm_backward, true},
          {"attention_forward", attention_forward, true},
          {"attention_backward", attention_backward, true},
          {"gather_rows", gather_rows, true},
          {"scatter_add_rows", scatter_add_rows, true},
          {"softmax_nll", softmax_nll, true}};
}

}  // namespace motley::bench
