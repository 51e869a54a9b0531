// Operations on each element by itself, on activations of BERT-large, and casts of its arena.
#include "core/philox.h"
#include "kernel_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t checked_rows = 2;

DropoutMask mask_from(std::int64_t first) {
  return {RandomKey(1, Purpose::dropout, 3, 7), static_cast<std::uint32_t>(first), 0.1};
}

// x and y: [rows, ...] of the same type, y = operation(x). `reference` is the same on slices, with the first of
// their rows.
using Reference = std::function<void(ConstView x, View y, std::int64_t first)>;
void measure_unary(Bench& bench, const std::string& name, DType type, const Shape& shape,
                   const std::function<void(ConstView x, View y)>& run, const Reference& reference) {
  const double bytes = 2 * static_cast<double>(shape.elements()) * static_cast<double>(size_of(type));
  struct Set {
    View x, y;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type);
    return Set{x, tensors.poisoned(shape, type)};
  });
  bench.measure(
      {name, type, shape.to_string(), bytes},
      [&](std::size_t i) { run(sets[i % sets.size()].x, sets[i % sets.size()].y); },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(shape[0], checked_rows)) {
          Host x(bench.backend(), rows_of(sets[0].x, first, checked_rows)), want(x.shape);
          reference(x, want, first);
          error.add(Host(bench.backend(), rows_of(sets[0].y, first, checked_rows)).values, want.values);
        }
        return error.value();
      });
}

void dropout(Bench& bench, DType type) {
  const TokenSizes size(bench);
  measure_unary(
      bench, "dropout", type, {size.n, size.seq, size.hidden},
      [&](ConstView x, View y) { bench.backend().dropout(mask_from(0), x, y); },
      [&](ConstView x, View y, std::int64_t first) { bench.reference().dropout(mask_from(first), x, y); });
}

void dropout_channels(Bench& bench, DType type) {
  measure_unary(
      bench, "dropout_channels", type, {bench.pick(8192, 512, 5), 12, 12, 64},
      [&](ConstView x, View y) { bench.backend().dropout_channels(mask_from(0), x, y); },
      [&](ConstView x, View y, std::int64_t first) {
        bench.reference().dropout_channels(mask_from(first), x, y);
      });
}

void relu_forward(Bench& bench, DType type) {
  measure_unary(
      bench, "relu_forward", type, {bench.pick(2048, 128, 3), 24, 24, 64},
      [&](ConstView x, View y) { bench.backend().relu_forward(x, y); },
      [&](ConstView x, View y, std::int64_t) { bench.reference().relu_forward(x, y); });
}

// x and dy: dx = operation(x, dy), all of one shape.
void measure_backward(Bench& bench, const std::string& name, DType type, const Shape& shape,
                      const std::function<void(Backend& on, ConstView x, ConstView dy, View dx)>& run) {
  const double bytes = 3 * static_cast<double>(shape.elements()) * static_cast<double>(size_of(type));
  struct Set {
    View x, dy, dx;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type, 3), dy = tensors.random(shape, type);
    return Set{x, dy, tensors.poisoned(shape, type)};
  });
  bench.measure(
      {name, type, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        run(bench.backend(), set.x, set.dy, set.dx);
      },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(shape[0], checked_rows)) {
          Host x(bench.backend(), rows_of(sets[0].x, first, checked_rows)),
              dy(bench.backend(), rows_of(sets[0].dy, first, checked_rows)), want(x.shape);
          run(bench.reference(), x, dy, want);
          error.add(Host(bench.backend(), rows_of(sets[0].dx, first, checked_rows)).values, want.values);
        }
        return error.value();
      });
}

void relu_backward(Bench& bench, DType type) {
  measure_backward(bench, "relu_backward", type, {bench.pick(2048, 128, 3), 24, 24, 64},
                   [](Backend& on, ConstView y, ConstView dy, View dx) { on.relu_backward(y, dy, dx); });
}

void activation_backward(Bench& bench, DType type) {
  const TokenSizes size(bench);
  measure_backward(bench, "activation_backward", type, {size.tokens, size.inner},
                   [](Backend& on, ConstView x, ConstView dy, View dx) {
                     on.activation_backward(Activation::gelu, x, dy, dx);
                   });
}

void measure_cast(Bench& bench, DType from, DType to) {
  const std::int64_t elements = arena_elements(bench);
  const double bytes = static_cast<double>(elements) * static_cast<double>(size_of(from) + size_of(to));
  struct Set {
    View x, y;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random({elements}, from);
    return Set{x, tensors.poisoned({elements}, to)};
  });
  const std::int64_t checked = std::min<std::int64_t>(elements, 1 << 20);
  // The result is x rounded once: its type is that of the narrower side.
  const DType type = to == DType::f32 ? from : to;
  bench.measure(
      {fmt::format("cast to {}", name_of(to)), type, fmt::format("[{}]", elements), bytes},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        bench.backend().cast(set.x, set.y);
      },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(elements, checked)) {
          error.add(Host(bench.backend(), rows_of(sets[0].y, first, checked)).values,
                    Host(bench.backend(), rows_of(sets[0].x, first, checked)).values);
        }
        return error.value();
      });
}

void cast(Bench& bench, DType type) {
  if (type == DType::f32) return;
  measure_cast(bench, DType::f32, type);
  measure_cast(bench, type, DType::f32);
}

}  // namespace

std::vector<Case> elementwise_cases() {
  return {{"dropout", dropout, true},
          {"dropout_channels", dropout_channels, true},
          {"relu_forward", relu_forward, true},
          {"relu_backward", relu_backward, true},
          {"activation_backward", activation_backward, true},
          {"cast", cast, true}};
}

}  // namespace motley::bench
