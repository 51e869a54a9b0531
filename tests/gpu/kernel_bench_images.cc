// Operations of image networks, at the sizes of the mnist network: 28 x 28 images, 64 channels of 24 x 24 before the
// pooling. Convolutions: of ResNet-50, too, in the form for CIFAR.
#include <algorithm>

#include "kernel_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t checked_rows = 2;

void normalize_images(Bench& bench, DType type) {
  const Shape shape{bench.pick(131072, 8192, 3), 28, 28, 1};
  const double bytes = static_cast<double>(1 + size_of(type)) * static_cast<double>(shape.elements());
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
    return Set{x, tensors.poisoned(shape, type)};
  });
  bench.measure(
      {"normalize_images", type, shape.to_string(), bytes},
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
  double bytes(DType type) const {
    const auto size = static_cast<double>(size_of(type));
    return size * static_cast<double>(input().elements()) +
           (size + 1) * static_cast<double>(output().elements());
  }
};

void max_pool2d_forward(Bench& bench, DType type) {
  const PoolSizes size(bench);
  struct Set {
    View x, y, argmax;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, size.bytes(type), [&] {
    const View x = tensors.random(size.input(), type), y = tensors.poisoned(size.output(), type);
    return Set{x, y, tensors.poisoned(size.output(), DType::u8)};
  });
  bench.measure(
      {"max_pool2d_forward", type, size.input().to_string(), size.bytes(type)},
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

void max_pool2d_backward(Bench& bench, DType type) {
  const PoolSizes size(bench);
  std::vector<std::uint8_t> places(static_cast<std::size_t>(size.output().elements()));
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::uint8_t>(i * 7919 / 16 % 4);
  struct Set {
    View dy, argmax, dx;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, size.bytes(type), [&] {
    const View dy = tensors.random(size.output(), type), argmax = tensors.values(places, size.output());
    return Set{dy, argmax, tensors.poisoned(size.input(), type)};
  });
  bench.measure(
      {"max_pool2d_backward", type, size.input().to_string(), size.bytes(type)},
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

void measure_layout(Bench& bench, const char* name, DType type, const Shape& from, const Shape& to,
                    const std::function<void(Backend& on, ConstView x, View y)>& run) {
  const double bytes = 2 * static_cast<double>(size_of(type)) * static_cast<double>(from.elements());
  struct Set {
    View x, y;
  };
  Tensors tensors(bench.backend());
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensors.random(from, type);
    return Set{x, tensors.poisoned(to, type)};
  });
  bench.measure(
      {name, type, from.to_string(), bytes},
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

void nhwc_to_nchw(Bench& bench, DType type) {
  const std::int64_t n = bench.pick(2048, 256, 3);
  measure_layout(bench, "nhwc_to_nchw", type, {n, 12, 12, 64}, {n, 64, 12, 12},
                 [](Backend& on, ConstView x, View y) { on.nhwc_to_nchw(x, y); });
}

void nchw_to_nhwc(Bench& bench, DType type) {
  const std::int64_t n = bench.pick(2048, 256, 3);
  measure_layout(bench, "nchw_to_nhwc", type, {n, 64, 12, 12}, {n, 12, 12, 64},
                 [](Backend& on, ConstView x, View y) { on.nchw_to_nhwc(x, y); });
}

struct Convolution {
  const char* what;
  std::int64_t full, quick, tiny;  // samples
  std::int64_t in, extent, out;    // channels and pixels along a side
  Conv2d conv;

  std::int64_t outputs() const { return (extent + 2 * conv.pad_h - conv.kernel_h) / conv.stride_h + 1; }
  Shape input(std::int64_t n) const { return {n, extent, extent, in}; }
  Shape output(std::int64_t n) const { return {n, outputs(), outputs(), out}; }
  Shape weight() const { return {out, in / conv.groups, conv.kernel_h, conv.kernel_w}; }
  double flop(std::int64_t n) const {
    return 2 * static_cast<double>(output(n).elements()) * static_cast<double>(weight().elements_from(1));
  }
};

constexpr Conv2d one_by_one{1, 1, 1, 1, 0, 0, 1}, three_by_three{3, 3, 1, 1, 1, 1, 1},
    three_by_three_stride{3, 3, 2, 2, 1, 1, 1};
// The mnist network's second convolution, then those of ResNet-50, and a depthwise one.
const Convolution convolutions[] = {
    {"mnist", 1024, 128, 2, 32, 26, 64, {3, 3, 1, 1, 0, 0, 1}},
    {"3x3", 256, 32, 2, 64, 32, 64, three_by_three},
    {"1x1 up", 256, 32, 2, 64, 32, 256, one_by_one},
    {"1x1 down", 256, 32, 2, 256, 32, 64, one_by_one},
    {"3x3 stride 2", 256, 32, 2, 128, 32, 128, three_by_three_stride},
    {"3x3", 256, 32, 2, 256, 8, 256, three_by_three},
    {"1x1 up", 256, 32, 2, 512, 4, 2048, one_by_one},
    {"depthwise 3x3", 256, 32, 2, 128, 32, 128, {3, 3, 1, 1, 1, 1, 128}},
};

// The three products of each: of x, weight and y, `written` is the result of the other two.
enum class Written : std::uint8_t { x, weight, y };
void measure_convolution(Bench& bench, const std::string& name, DType type, Written written,
                         const Convolution& c) {
  const std::int64_t n = bench.pick(c.full, c.quick, c.tiny);
  const DType weight_type = written == Written::weight ? DType::f32 : type;
  const double bytes = static_cast<double>(size_of(type)) *
                           static_cast<double>(c.input(n).elements() + c.output(n).elements()) +
                       static_cast<double>(size_of(weight_type)) * static_cast<double>(c.weight().elements());
  struct Set {
    View x, weight, y;
  };
  Tensors tensors(bench.backend());
  const auto tensor = [&](const Shape& shape, DType of, float range, Written which) {
    return which == written ? tensors.poisoned(shape, of) : tensors.random(shape, of, range);
  };
  const auto sets = make_sets(bench, bytes, [&] {
    const View x = tensor(c.input(n), type, 1, Written::x),
               weight = tensor(c.weight(), weight_type, 0.06f, Written::weight);
    return Set{x, weight, tensor(c.output(n), type, 1, Written::y)};
  });
  const auto run = [&](Backend& on, View x, View weight, View y) {
    if (written == Written::y) on.conv2d_forward(c.conv, x, weight, {}, Activation::none, y);
    if (written == Written::x) on.conv2d_backward_data(c.conv, y, weight, x);
    if (written == Written::weight) on.conv2d_backward_weights(c.conv, x, y, weight, {}, false);
  };
  bench.measure(
      {name, type, fmt::format("{} {} to {}", c.what, c.input(n).to_string(), c.out), bytes, c.flop(n)},
      [&](std::size_t i) {
        const Set& set = sets[i % sets.size()];
        run(bench.backend(), set.x, set.weight, set.y);
      },
      [&] {
        RelativeError error;
        // The gradient of the weights is a sum over all samples.
        const std::int64_t rows = written == Written::weight ? n : checked_rows;
        for (const std::int64_t first : both_ends(n, rows)) {
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

void conv2d_forward(Bench& bench, DType type) {
  for (const Convolution& c : convolutions) measure_convolution(bench, "conv2d_forward", type, Written::y, c);
}
void conv2d_backward_data(Bench& bench, DType type) {
  for (const Convolution& c : convolutions)
    measure_convolution(bench, "conv2d_backward_data", type, Written::x, c);
}
void conv2d_backward_weights(Bench& bench, DType type) {
  for (const Convolution& c : convolutions)
    measure_convolution(bench, "conv2d_backward_weights", type, Written::weight, c);
}

}  // namespace

std::vector<Case> image_cases() {
  return {{"normalize_images", normalize_images, true},
          {"max_pool2d_forward", max_pool2d_forward, true},
          {"max_pool2d_backward", max_pool2d_backward, true},
          {"nhwc_to_nchw", nhwc_to_nchw, true},
          {"nchw_to_nhwc", nchw_to_nhwc, true},
          {"conv2d_forward", conv2d_forward, true},
          {"conv2d_backward_data", conv2d_backward_data, true},
          {"conv2d_backward_weights", conv2d_backward_weights, true}};
}

}  // namespace motley::bench
