// Batch normalisation, at a layer of ResNet-50 in its CIFAR form: the sums and what is done with them, each a pass over
// memory.
#include "kernel_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t checked_rows = 2;

Shape images(const Bench& bench) {
  const std::int64_t side = bench.pick(32, 32, 5), channels = bench.pick(256, 256, 24);
  return {bench.pick(256, 32, 3), side, side, channels};
}

// Bytes of `tensors` tensors.
double bytes_of(double tensors, const Shape& shape, DType type) {
  return tensors * static_cast<double>(shape.elements()) * static_cast<double>(size_of(type));
}

// What a layer has beside its activations.
struct Channels {
  Channels(Tensors& tensors, std::int64_t c)
      : mean(tensors.random({c})),
        gamma(tensors.random({c})),
        beta(tensors.random({c})),
        rstd(tensors.values(std::vector<float>(static_cast<std::size_t>(c), 1.7f), {c})) {}
  View mean, gamma, beta, rstd;
};
struct HostChannels {
  HostChannels(Backend& backend, const Channels& from)
      : mean(backend, from.mean),
        gamma(backend, from.gamma),
        beta(backend, from.beta),
        rstd(backend, from.rstd) {}
  Host mean, gamma, beta, rstd;
};

std::vector<float> sums_on_host(Backend& backend, ConstView sums) {
  const auto values = on_host<double>(backend, sums);
  return {values.begin(), values.end()};
}

void batch_norm_sums(Bench& bench, DType type) {
  const Shape shape = images(bench), two_rows{2, shape[-1]};
  Tensors tensors(bench.backend());
  struct Set {
    View x, sums;
  };
  const double bytes = bytes_of(1, shape, type);
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type);
    return Set{x, tensors.poisoned(two_rows, DType::f64)};
  });
  bench.measure(
      {"batch_norm_sums", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        bench.backend().batch_norm_sums(sets[i % sets.size()].x, sets[i % sets.size()].sums);
      },
      [&] {
        Host x(bench.backend(), sets[0].x);
        std::vector<double> want(static_cast<std::size_t>(two_rows.elements()));
        bench.reference().batch_norm_sums(x, view_of(want.data(), two_rows));
        RelativeError error;
        error.add(sums_on_host(bench.backend(), sets[0].sums), {want.begin(), want.end()});
        return error.value();
      });
}

void measure_forward(Bench& bench, DType type, bool residual) {
  const Shape shape = images(bench);
  Tensors tensors(bench.backend());
  const Channels channels(tensors, shape[-1]);
  struct Set {
    View x, residual, y;
  };
  const double bytes = bytes_of(residual ? 3 : 2, shape, type);
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type), added = residual ? tensors.random(shape, type) : View{};
    return Set{x, added, tensors.poisoned(shape, type)};
  });
  bench.measure(
      {residual ? "batch_norm_forward with residual" : "batch_norm_forward", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().batch_norm_forward(Activation::relu, s.x, s.residual, channels.mean, channels.rstd,
                                           channels.gamma, channels.beta, s.y);
      },
      [&] {
        RelativeError error;
        HostChannels host(bench.backend(), channels);
        for (const std::int64_t first : both_ends(shape[0], checked_rows)) {
          const auto rows = [&](const View& whole) {
            return Host(bench.backend(), rows_of(whole, first, checked_rows));
          };
          Host x = rows(sets[0].x), added = residual ? rows(sets[0].residual) : Host(Shape{0}), want(x.shape);
          bench.reference().batch_norm_forward(Activation::relu, x, residual ? added.view() : View{},
                                               host.mean, host.rstd, host.gamma, host.beta, want);
          error.add(rows(sets[0].y).values, want.values);
        }
        return error.value();
      });
}

void batch_norm_forward(Bench& bench, DType type) {
  measure_forward(bench, type, false);
  measure_forward(bench, type, true);
}

void batch_norm_backward_sums(Bench& bench, DType type) {
  const Shape shape = images(bench), row{shape[-1]}, two_rows{2, shape[-1]};
  Tensors tensors(bench.backend());
  const Channels channels(tensors, shape[-1]);
  const View dgamma = tensors.poisoned(row), dbeta = tensors.poisoned(row);
  struct Set {
    View x, dy, sums;
  };
  const double bytes = bytes_of(2, shape, type);
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type), dy = tensors.random(shape, type);
    return Set{x, dy, tensors.poisoned(two_rows, DType::f64)};
  });
  bench.measure(
      {"batch_norm_backward_sums", type, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().batch_norm_backward_sums(Activation::relu, s.x, {}, s.dy, channels.mean,
                                                 channels.rstd, channels.gamma, channels.beta, s.sums, dgamma,
                                                 dbeta, false);
      },
      [&] {
        Host x(bench.backend(), sets[0].x), dy(bench.backend(), sets[0].dy), want_gamma(row), want_beta(row);
        HostChannels host(bench.backend(), channels);
        std::vector<double> want(static_cast<std::size_t>(two_rows.elements()));
        bench.reference().batch_norm_backward_sums(Activation::relu, x, {}, dy, host.mean, host.rstd,
                                                   host.gamma, host.beta, view_of(want.data(), two_rows),
                                                   want_gamma, want_beta, false);
        RelativeError error;
        error.add(sums_on_host(bench.backend(), sets[0].sums), {want.begin(), want.end()});
        error.add(Host(bench.backend(), dgamma).values, want_gamma.values);
        error.add(Host(bench.backend(), dbeta).values, want_beta.values);
        return error.value();
      });
}

// Behind a residual relu is derived from y, and the residual has a gradient, too.
void measure_backward(Bench& bench, DType type, bool residual) {
  const Shape shape = images(bench), two_rows{2, shape[-1]};
  Tensors tensors(bench.backend());
  const Channels channels(tensors, shape[-1]);
  const auto count = static_cast<double>(shape.elements() / shape[-1]);
  std::vector<double> sums(static_cast<std::size_t>(two_rows.elements()));
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = count * (0.1 + 0.01 * static_cast<double>(i % 7));
  const View device_sums = tensors.values(sums, two_rows);
  struct Set {
    View x, y, dy, dx, dresidual;
  };
  const double bytes = bytes_of(residual ? 5 : 3, shape, type);
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(shape, type), y = residual ? tensors.random(shape, type) : View{},
               dy = tensors.random(shape, type), dx = tensors.poisoned(shape, type);
    return Set{x, y, dy, dx, residual ? tensors.poisoned(shape, type) : View{}};
  });
  bench.measure(
      {residual ? "batch_norm_backward with residual" : "batch_norm_backward", type, shape.to_string(),
       bytes},
      [&](std::size_t i) {
        const Set& s = sets[i % sets.size()];
        bench.backend().batch_norm_backward(Activation::relu, s.x, s.y, s.dy, channels.mean, channels.rstd,
                                            channels.gamma, channels.beta, device_sums, count, s.dx,
                                            s.dresidual);
      },
      [&] {
        RelativeError error;
        HostChannels host(bench.backend(), channels);
        for (const std::int64_t first : both_ends(shape[0], checked_rows)) {
          const auto rows = [&](const View& whole) {
            return Host(bench.backend(), rows_of(whole, first, checked_rows));
          };
          Host x = rows(sets[0].x), y = residual ? rows(sets[0].y) : Host(Shape{0}), dy = rows(sets[0].dy),
               want(x.shape), want_residual(x.shape);
          bench.reference().batch_norm_backward(Activation::relu, x, residual ? y.view() : View{}, dy,
                                                host.mean, host.rstd, host.gamma, host.beta,
                                                view_of(sums.data(), two_rows), count, want,
                                                residual ? want_residual.view() : View{});
          error.add(rows(sets[0].dx).values, want.values);
          if (residual) error.add(rows(sets[0].dresidual).values, want_residual.values);
        }
        return error.value();
      });
}

void batch_norm_backward(Bench& bench, DType type) {
  measure_backward(bench, type, false);
  measure_backward(bench, type, true);
}

}  // namespace

std::vector<Case> batch_norm_cases() {
  return {{"batch_norm_sums", batch_norm_sums, true},
          {"batch_norm_forward", batch_norm_forward, true},
          {"batch_norm_backward_sums", batch_norm_backward_sums, true},
          {"batch_norm_backward", batch_norm_backward, true}};
}

}  // namespace motley::bench
