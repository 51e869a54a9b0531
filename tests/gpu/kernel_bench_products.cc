// Products of matrices, at the sizes of a layer of BERT-large (hidden to inner) and of its decoder.
#include <algorithm>

#include "kernel_bench.h"

namespace motley::bench {
namespace {

double bytes_of(std::int64_t elements, DType type) {
  return static_cast<double>(elements) * static_cast<double>(size_of(type));
}

// A product of [m, k] and [k, n].
struct ProductSizes {
  std::int64_t m, n, k;
  double flop() const { return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
  std::string text() const { return fmt::format("[{}, {}] [{}, {}]", m, k, k, n); }
  std::int64_t checked_rows() const { return std::min<std::int64_t>(m, 8); }
};

void measure_forward(Bench& bench, const std::string& name, DType type, const ProductSizes& size, DType out,
                     Activation activation) {
  const bool keeps = activation != Activation::none;
  const double bytes = bytes_of(size.m * size.k + size.k * size.n, type) +
                       (keeps ? 2 : 1) * bytes_of(size.m * size.n, out) + bytes_of(size.n, DType::f32);
  struct Set {
    View x, y, before;
  };
  Tensors tensors(bench.backend());
  const View weight = tensors.random({size.n, size.k}, type, 0.05f),
             bias = tensors.random({size.n}, DType::f32, 0.2f);
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random({size.m, size.k}, type), y = tensors.poisoned({size.m, size.n}, out);
    return Set{x, y, keeps ? tensors.poisoned({size.m, size.n}, out) : View{}};
  });
  bench.measure(
      {name, type, size.text(), bytes, size.flop()},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().linear_forward(s.x, weight, bias, activation, s.y, s.before);
      },
      [&] {
        RelativeError error;
        Host host_weight(bench.backend(), weight), host_bias(bench.backend(), bias);
        for (const std::int64_t first : both_ends(size.m, size.checked_rows())) {
          Host x(bench.backend(), rows_of(sets[0].x, first, size.checked_rows())),
              y({size.checked_rows(), size.n}), before(y.shape);
          bench.reference().linear_forward(x, host_weight, host_bias, activation, y,
                                           keeps ? before.view() : View{});
          error.add(Host(bench.backend(), rows_of(sets[0].y, first, size.checked_rows())).values, y.values);
          if (keeps)
            error.add(Host(bench.backend(), rows_of(sets[0].before, first, size.checked_rows())).values,
                      before.values);
        }
        return error.value();
      });
}

// [tokens, hidden] to [tokens, inner], with GELU.
void linear_forward(Bench& bench, DType type) {
  const TokenSizes size(bench);
  measure_forward(bench, "linear_forward with GELU", type, {size.tokens, size.inner, size.hidden}, type,
                  Activation::gelu);
}

// [masked, hidden] to float32 [masked, words].
void decoder_forward(Bench& bench, DType type) {
  const TokenSizes size(bench);
  measure_forward(bench, "linear_forward to words", type, {size.masked, size.words, size.hidden}, DType::f32,
                  Activation::none);
}

void linear_backward_data(Bench& bench, DType type) {
  const TokenSizes sizes(bench);
  const ProductSizes size{sizes.tokens, sizes.hidden, sizes.inner};
  const double bytes = bytes_of(size.m * size.k + size.k * size.n + size.m * size.n, type);
  struct Set {
    View dy, dx;
  };
  Tensors tensors(bench.backend());
  const View weight = tensors.random({size.k, size.n}, type, 0.05f);
  const auto sets = make_sets(bench, bytes, [&] {
    const View dy = tensors.random({size.m, size.k}, type);
    return Set{dy, tensors.poisoned({size.m, size.n}, type)};
  });
  bench.measure(
      {"linear_backward_data", type, size.text(), bytes, size.flop()},
      [&](std::size_t i) {
        bench.backend().linear_backward_data(sets[i % sets.size()].dy, weight, sets[i % sets.size()].dx);
      },
      [&] {
        RelativeError error;
        Host host_weight(bench.backend(), weight);
        for (const std::int64_t first : both_ends(size.m, size.checked_rows())) {
          Host dy(bench.backend(), rows_of(sets[0].dy, first, size.checked_rows())),
              dx({size.checked_rows(), size.n});
          bench.reference().linear_backward_data(dy, host_weight, dx);
          error.add(Host(bench.backend(), rows_of(sets[0].dx, first, size.checked_rows())).values, dx.values);
        }
        return error.value();
      });
}

// Columns [first, first + count) of a matrix.
Host columns_of(const Host& x, std::int64_t first, std::int64_t count) {
  const std::int64_t width = x.shape[1];
  Host result({x.shape[0], count});
  for (std::int64_t row = 0; row < x.shape[0]; ++row)
    std::copy_n(x.values.data() + row * width + first, count, result.values.data() + row * count);
  return result;
}

void linear_backward_weights(Bench& bench, DType type) {
  const TokenSizes sizes(bench);
  const ProductSizes size{sizes.inner, sizes.hidden, sizes.tokens};
  const double bytes =
      bytes_of(size.k * (size.m + size.n), type) + bytes_of(size.m * size.n + size.m, DType::f32);
  struct Set {
    View x, dy, dweight, dbias;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random({size.k, size.n}, type), dy = tensors.random({size.k, size.m}, type),
               dweight = tensors.poisoned({size.m, size.n});
    return Set{x, dy, dweight, tensors.poisoned({size.m})};
  });
  bench.measure(
      {"linear_backward_weights", type, size.text(), bytes, size.flop()},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().linear_backward_weights(s.x, s.dy, s.dweight, s.dbias, false);
      },
      [&] {
        Host x(bench.backend(), sets[0].x);
        const Host dy(bench.backend(), sets[0].dy);
        RelativeError weight_error, bias_error;
        // A few rows of the result: sums over all tokens.
        for (const std::int64_t first : both_ends(size.m, size.checked_rows())) {
          Host part = columns_of(dy, first, size.checked_rows()), dweight({size.checked_rows(), size.n}),
               dbias({size.checked_rows()});
          bench.reference().linear_backward_weights(x, part, dweight, dbias, false);
          weight_error.add(Host(bench.backend(), rows_of(sets[0].dweight, first, size.checked_rows())).values,
                           dweight.values);
          bias_error.add(Host(bench.backend(), rows_of(sets[0].dbias, first, size.checked_rows())).values,
                         dbias.values);
        }
        return std::max(weight_error.value(), bias_error.value());
      });
}

}  // namespace

std::vector<Case> product_cases() {
  return {{"linear_forward", linear_forward, true},
          {"linear_forward", decoder_forward, true},
          {"linear_backward_data", linear_backward_data, true},
          {"linear_backward_weights", linear_backward_weights, true}};
}

}  // namespace motley::bench
