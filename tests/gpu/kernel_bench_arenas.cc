// Operations over flat arenas as long as BERT-large's.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_bench.h"

namespace motley::bench {
namespace {

std::int64_t checked_elements(const Bench& bench) {
  return std::min<std::int64_t>(arena_elements(bench), 1 << 20);
}

std::string text_of(std::int64_t elements) {
  return fmt::format("[{}]", elements);
}

void fill_zero(Bench& bench, DType) {
  const std::int64_t elements = arena_elements(bench);
  Tensors tensors(bench.backend());
  const View x = tensors.poisoned({elements});
  bench.measure(
      {"fill_zero", DType::f32, text_of(elements), 4 * static_cast<double>(elements)},
      [&](std::size_t) { bench.backend().fill_zero(x); },
      [&] {
        bool all_zero = true;
        for (const std::int64_t first : both_ends(elements, checked_elements(bench))) {
          const Host part(bench.backend(), rows_of(x, first, checked_elements(bench)));
          for (const float value : part.values) all_zero = all_zero && value == 0;
        }
        return all_zero ? 0.0 : std::numeric_limits<double>::infinity();
      });
}

void sum_squares(Bench& bench, DType) {
  const std::int64_t elements = arena_elements(bench);
  Tensors tensors(bench.backend());
  const View x = tensors.random({elements}), sum = tensors.poisoned({1}, DType::f64);
  bench.measure(
      {"sum_squares", DType::f32, text_of(elements), 4 * static_cast<double>(elements)},
      [&](std::size_t) { bench.backend().sum_squares(x, sum); },
      [&] {
        double want = 0;
        constexpr std::int64_t piece = 1 << 24;
        for (std::int64_t done = 0; done < elements; done += piece) {
          const Host part(bench.backend(), rows_of(x, done, std::min(piece, elements - done)));
          double of_part = 0;
          for (const float value : part.values)
            of_part += static_cast<double>(value) * static_cast<double>(value);
          want += of_part;
        }
        return std::abs(on_host<double>(bench.backend(), sum)[0] / want - 1);
      });
}

// Slices of one arena at both ends, as they were before the first call.
std::vector<Host> ends_of(const Bench& bench, ConstView arena) {
  std::vector<Host> ends;
  for (const std::int64_t first : both_ends(arena.elements(), checked_elements(bench)))
    ends.emplace_back(bench.backend(), rows_of(arena, first, checked_elements(bench)));
  return ends;
}

void scale(Bench& bench, DType) {
  const std::int64_t elements = arena_elements(bench);
  constexpr double factor = 0.9993;
  Tensors tensors(bench.backend());
  const View x = tensors.random({elements});
  std::vector<Host> want = ends_of(bench, x);
  bench.measure(
      {"scale", DType::f32, text_of(elements), 8 * static_cast<double>(elements)},
      [&](std::size_t) { bench.backend().scale(factor, x); },
      [&] {
        RelativeError error;
        const std::vector<Host> got = ends_of(bench, x);
        for (std::size_t i = 0; i < got.size(); ++i) {
          bench.reference().scale(factor, want[i]);
          error.add(got[i].values, want[i].values);
        }
        return error.value();
      });
}

// grad, param and two states, the second of which not all optimizers have.
template <class V>
struct Arenas {
  V grad, param, first, second;
};
using Step = std::function<void(Backend& on, const Arenas<View>& arenas, ConstView scale)>;

Arenas<View> make_arenas(Tensors& tensors, std::int64_t elements) {
  // Averages of squares are not negative.
  const auto squares = [&] {
    const View x = tensors.random({elements}, DType::f32, 0.05f);
    tensors.backend().relu_forward(x, x);
    return x;
  };
  const View grad = tensors.random({elements}), param = tensors.random({elements}, DType::f32, 0.1f),
             first = squares();
  return {grad, param, first, squares()};
}

// An optimizer that treats each element by itself. `bytes`: of one element's gradient, parameter and states.
void measure_step(Bench& bench, const char* name, double bytes, const Step& step) {
  const std::int64_t elements = arena_elements(bench);
  Tensors tensors(bench.backend());
  const Arenas<View> arenas = make_arenas(tensors, elements);
  const View scale = tensors.values(std::vector<float>{0.5f, 1}, {2});
  Arenas<std::vector<Host>> want{ends_of(bench, arenas.grad), ends_of(bench, arenas.param),
                                 ends_of(bench, arenas.first), ends_of(bench, arenas.second)};
  bench.measure(
      {name, DType::f32, text_of(elements), bytes * static_cast<double>(elements)},
      [&](std::size_t) { step(bench.backend(), arenas, scale); },
      [&] {
        Host host_scale(bench.backend(), scale);
        RelativeError param, first, second;
        const Arenas<std::vector<Host>> got{
            {}, ends_of(bench, arenas.param), ends_of(bench, arenas.first), ends_of(bench, arenas.second)};
        for (std::size_t i = 0; i < want.grad.size(); ++i) {
          step(bench.reference(), {want.grad[i], want.param[i], want.first[i], want.second[i]}, host_scale);
          param.add(got.param[i].values, want.param[i].values);
          first.add(got.first[i].values, want.first[i].values);
          second.add(got.second[i].values, want.second[i].values);
        }
        return std::max({param.value(), first.value(), second.value()});
      });
}

// The learning rates make steps as large as the parameters, so that an error of the step shows.
void sgd_step(Bench& bench, DType) {
  const SgdOptions options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01};
  measure_step(bench, "sgd_step", 20, [&](Backend& on, const Arenas<View>& a, ConstView scale) {
    on.sgd_step(options, a.grad, scale, a.param, a.first);
  });
}

void adam_step(Bench& bench, DType) {
  const AdamOptions options{.lr = 0.1, .weight_decay = 0.01, .decoupled = true, .step = 3};
  measure_step(bench, "adam_step", 28, [&](Backend& on, const Arenas<View>& a, ConstView scale) {
    on.adam_step(options, a.grad, scale, a.param, a.first, a.second);
  });
}

void adadelta_step(Bench& bench, DType) {
  measure_step(bench, "adadelta_step", 28, [](Backend& on, const Arenas<View>& a, ConstView scale) {
    on.adadelta_step({.lr = 1}, a.grad, scale, a.param, a.first, a.second);
  });
}

// Tensors as a layer of BERT has them, over and over, until the arena is full.
std::vector<Segment> tensors_of(const Bench& bench, std::int64_t elements) {
  const auto hidden = static_cast<std::size_t>(bench.pick(1024, 1024, 8));
  std::vector<Segment> segments;
  std::size_t offset = 0;
  const auto left = [&] { return static_cast<std::size_t>(elements) - offset; };
  while (left() > 0) {
    for (const std::size_t size : {hidden * hidden, hidden, 4 * hidden * hidden, 4 * hidden}) {
      const bool is_matrix = size >= hidden * hidden;
      const std::size_t taken = std::min(size, left());
      if (taken > 0) segments.push_back({offset, taken, is_matrix ? 0.01 : 0.0, is_matrix});
      offset += taken;
    }
  }
  return segments;
}

// The step of a tensor needs the norm of all of it before any element can be written, and so a second pass:
// gradient, parameter and states are read and the states written by the first, parameter and states read and the
// parameter written by the second.
void lamb_step(Bench& bench, DType) {
  const std::int64_t elements = arena_elements(bench);
  const LambOptions options{.lr = 0.1, .step = 3};
  Tensors tensors(bench.backend());
  const Arenas<View> arenas = make_arenas(tensors, elements);
  const View scale = tensors.values(std::vector<float>{0.5f, 1}, {2});
  const std::vector<Segment> segments = tensors_of(bench, elements);
  const std::vector<Segment> checked{segments[0], segments[1], segments.back()};
  const auto slice = [&](const View& arena, const Segment& s) {
    return Host(bench.backend(),
                rows_of(arena, static_cast<std::int64_t>(s.offset), static_cast<std::int64_t>(s.elements)));
  };
  std::vector<Arenas<Host>> want;
  for (const Segment& s : checked)
    want.push_back(
        {slice(arenas.grad, s), slice(arenas.param, s), slice(arenas.first, s), slice(arenas.second, s)});
  bench.measure(
      {"lamb_step", DType::f32, text_of(elements), 40 * static_cast<double>(elements)},
      [&](std::size_t) {
        bench.backend().lamb_step(options, segments, arenas.grad, scale, arenas.param, arenas.first,
                                  arenas.second);
      },
      [&] {
        Host host_scale(bench.backend(), scale);
        RelativeError param, first, second;
        for (std::size_t i = 0; i < checked.size(); ++i) {
          Segment whole = checked[i];
          whole.offset = 0;
          Arenas<Host>& w = want[i];
          bench.reference().lamb_step(options, {&whole, 1}, w.grad, host_scale, w.param, w.first, w.second);
          param.add(slice(arenas.param, checked[i]).values, w.param.values);
          first.add(slice(arenas.first, checked[i]).values, w.first.values);
          second.add(slice(arenas.second, checked[i]).values, w.second.values);
        }
        return std::max({param.value(), first.value(), second.value()});
      });
}

}  // namespace

std::vector<Case> arena_cases() {
  return {{"fill_zero", fill_zero}, {"sum_squares", sum_squares}, {"scale", scale},
          {"sgd_step", sgd_step},   {"adam_step", adam_step},     {"adadelta_step", adadelta_step},
          {"lamb_step", lamb_step}};
}

}  // namespace motley::bench
