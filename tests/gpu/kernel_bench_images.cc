// Operations of image networks, at the sizes of the mnist network: 28 x 28 images, 64 channels of 24 x 24 before the
// pooling.
#include <algorithm>

#include "kernel_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t checked_rows = 2;

void normalize_images(Bench& bench, DType) {
  const Shape shape{bench.pick(131072, 8192, 3), 28, 28, 1};
  const double bytes = 5 * static_cast<double>(shape.elements());
  const std::vector<float> mean{0.1307f}, deviation{0.3081f};
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.elements()));
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<std::uint8_t>(i * 2654435761u >> 13);
  struct Set {
    View x, y;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.values(pixels, shape);
    return Set{x, tensors.poisoned(shape)};
  });
  bench.measure(
      {"normalize_images", DType::f32, shape.to_string(), bytes},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        bench.backend().normalize_images(set.x, mean, deviation, set.y);
      },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(shape[0], checked_rows)) {
          const ConstView rows = rows_of(sets[0].x, first, checked_rows);
          const auto x = on_host<std::uint8_t>(bench.backend(), rows);
          Host want(rows.shape);
          bench.reference().normalize_images(view_of(x.data(), rows.shape), mean, deviation, want);
          error.add(Host(bench.backend(), rows_of(sets[0].y, first, checked_rows)).values, want.values);
        }
        return error.value();
      });
}

// [n, 24, 24, 64] and what is left of it after the pooling.
struct PoolSizes {
  explicit PoolSizes(const Bench& bench) : n(bench.pick(1024, 128, 3)) {}
  std::int64_t n;
  Shape input() const { return {n, 24, 24, 64}; }
  Shape output() const { return {n, 12, 12, 64}; }
  double bytes() const {
    return 4 * static_cast<double>(input().elements()) + 5 * static_cast<double>(output().elements());
  }
};

void max_pool2d_forward(Bench& bench, DType) {
  const PoolSizes size(bench);
  struct Set {
    View x, y, argmax;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, size.bytes(), [&] {
    const View x = tensors.random(size.input()), y = tensors.poisoned(size.output());
    return Set{x, y, tensors.poisoned(size.output(), DType::u8)};
  });
  bench.measure(
      {"max_pool2d_forward", DType::f32, size.input().to_string(), size.bytes()},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        bench.backend().max_pool2d_forward({}, set.x, set.y, set.argmax);
      },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(size.n, checked_rows)) {
          const Host x(bench.backend(), rows_of(sets[0].x, first, checked_rows));
          Host want(size.output().without_batch().with_batch(checked_rows));
          std::vector<std::uint8_t> places(want.values.size());
          bench.reference().max_pool2d_forward({}, view_of(x.values.data(), x.shape), want,
                                               view_of(places.data(), want.shape));
          error.add(Host(bench.backend(), rows_of(sets[0].y, first, checked_rows)).values, want.values);
          const auto got =
              on_host<std::uint8_t>(bench.backend(), rows_of(sets[0].argmax, first, checked_rows));
          error.add({got.begin(), got.end()}, {places.begin(), places.end()});
        }
        return error.value();
      });
}

void max_pool2d_backward(Bench& bench, DType) {
  const PoolSizes size(bench);
  std::vector<std::uint8_t> places(static_cast<std::size_t>(size.output().elements()));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::uint8_t>(i * 7919 / 16 % 4);
  struct Set {
    View dy, argmax, dx;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, size.bytes(), [&] {
    const View dy = tensors.random(size.output()), argmax = tensors.values(places, size.output());
    return Set{dy, argmax, tensors.poisoned(size.input())};
  });
  bench.measure(
      {"max_pool2d_backward", DType::f32, size.input().to_string(), size.bytes()},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        bench.backend().max_pool2d_backward({}, set.dy, set.argmax, set.dx);
      },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(size.n, checked_rows)) {
          Host dy(bench.backend(), rows_of(sets[0].dy, first, checked_rows));
          const auto argmax =
              on_host<std::uint8_t>(bench.backend(), rows_of(sets[0].argmax, first, checked_rows));
          Host want(size.input().without_batch().with_batch(checked_rows));
          bench.reference().max_pool2d_backward({}, dy, view_of(argmax.data(), dy.shape), want);
          error.add(Host(bench.backend(), rows_of(sets[0].dx, first, checked_rows)).values, want.values);
        }
        return error.value();
      });
}

void measure_layout(Bench& bench, const char* name, const Shape& from, const Shape& to,
                    const std::function<void(Backend& on, ConstView x, View y)>& run) {
  const double bytes = 8 * static_cast<double>(from.elements());
  struct Set {
    View x, y;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(from);
    return Set{x, tensors.poisoned(to)};
  });
  bench.measure(
      {name, DType::f32, from.to_string(), bytes},
      [&](std::size_t i) { run(bench.backend(), sets[i % sets.size()].x, sets[i % sets.size()].y); },
      [&] {
        RelativeError error;
        for (const std::int64_t first : both_ends(from[0], checked_rows)) {
          Host x(bench.backend(), rows_of(sets[0].x, first, checked_rows));
          Host want(to.without_batch().with_batch(checked_rows));
          run(bench.reference(), x, want);
          error.add(Host(bench.backend(), rows_of(sets[0].y, first, checked_rows)).values, want.values);
        }
        return error.value();
      });
}

void nhwc_to_nchw(Bench& bench, DType) {
  const std::int64_t n = bench.pick(2048, 256, 3);
  measure_layout(bench, "nhwc_to_nchw", {n, 12, 12, 64}, {n, 64, 12, 12},
                 [](Backend& on, ConstView x, View y) { on.nhwc_to_nchw(x, y); });
}

void nchw_to_nhwc(Bench& bench, DType) {
  const std::int64_t n = bench.pick(2048, 256, 3);
  measure_layout(bench, "nchw_to_nhwc", {n, 64, 12, 12}, {n, 12, 12, 64},
                 [](Backend& on, ConstView x, View y) { on.nchw_to_nhwc(x, y); });
}

// The network's second convolution: 3 x 3, 32 to 64 channels.
struct ConvSizes {
  explicit ConvSizes(const Bench& bench) : n(bench.pick(1024, 128, 2)) {}
  Conv2d conv{3, 3, 1, 1, 0, 0, 1};
  std::int64_t n;
  Shape input() const { return {n, 26, 26, 32}; }
  Shape output() const { return {n, 24, 24, 64}; }
  Shape weight() const { return {64, 32, 3, 3}; }
  double bytes() const {
    return 4 * static_cast<double>(input().elements() + output().elements() + weight().elements());
  }
  double flop() const { return 2 * static_cast<double>(output().elements()) * 9 * 32; }
};

// Its three products: of x, weight and y, `written` is the result of the other two.
enum class Written : std::uint8_t { x, weight, y };
void measure_convolution(Bench& bench, const char* name, Written written) {
  const ConvSizes size(bench);
  struct Set {
    View x, weight, y;
  };
  Tensors tensors(bench.backend());
  const auto tensor = [&](const Shape& shape, float range, Written which) {
    return which == written ? tensors.poisoned(shape) : tensors.random(shape, DType::f32, range);
  };
  const auto sets = make_sets(bench, size.bytes(), [&] {
    const View x = tensor(size.input(), 1, Written::x),
               weight = tensor(size.weight(), 0.06f, Written::weight);
    return Set{x, weight, tensor(size.output(), 1, Written::y)};
  });
  const auto run = [&](Backend& on, View x, View weight, View y) {
    if (written == Written::y) on.conv2d_forward(size.conv, x, weight, {}, Activation::none, y);
    if (written == Written::x) on.conv2d_backward_data(size.conv, y, weight, x);
    if (written == Written::weight) on.conv2d_backward_weights(size.conv, x, y, weight, {}, false);
  };
  bench.measure(
      {name, DType::f32, size.input().to_string(), size.bytes(), size.flop()},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        run(bench.backend(), set.x, set.weight, set.y);
      },
      [&] {
        RelativeError error;
        // The gradient of the weights is a sum over all samples.
        const std::int64_t rows = written == Written::weight ? size.n : checked_rows;
        for (const std::int64_t first : both_ends(size.n, rows)) {
          Host x(bench.backend(), rows_of(sets[0].x, first, rows)),
              y(bench.backend(), rows_of(sets[0].y, first, rows)), weight(bench.backend(), sets[0].weight);
          Host& result = written == Written::x ? x : written == Written::y ? y : weight;
          const std::vector<float> got = result.values;
          run(bench.reference(), x, weight, y);
          error.add(got, result.values);
        }
        return error.value();
      });
}

void conv2d_forward(Bench& bench, DType) {
  measure_convolution(bench, "conv2d_forward", Written::y);
}
void conv2d_backward_data(Bench& bench, DType) {
  measure_convolution(bench, "conv2d_backward_data", Written::x);
}
void conv2d_backward_weights(Bench& bench, DType) {
  measure_convolution(bench, "conv2d_backward_weights", Written::weight);
}

}  // namespace

std::vector<Case> image_cases() {
  return {{"normalize_images", normalize_images},
          {"max_pool2d_forward", max_pool2d_forward},
          {"max_pool2d_backward", max_pool2d_backward},
          {"nhwc_to_nchw", nhwc_to_nchw},
          {"nchw_to_nhwc", nchw_to_nhwc},
          {"conv2d_forward", conv2d_forward},
          {"conv2d_backward_data", conv2d_backward_data},
          {"conv2d_backward_weights", conv2d_backward_weights}};
}

}  // namespace motley::bench
