// Operations of image networks at batch 32, in float32 and bfloat16: the convolutions of ResNet-50 in the form for
// CIFAR, and what is bound by memory.
#include <deque>

#include "core/bfloat16.h"
#include "core/philox.h"
#include "kernels/buffer.h"
#include "kernels_bench.h"

namespace motley::bench {
namespace {

constexpr std::int64_t n = 32;

// The tensors of one case on one backend.
class Tensors {
 public:
  Tensors(Backend& backend, DType type) : backend_(backend), type_(type) {}
  Backend& backend() const { return backend_; }

  View make(const Shape& shape, DType dtype) {
    buffers_.emplace_back(backend_, static_cast<std::size_t>(shape.elements()) * size_of(dtype));
    return buffers_.back().view(dtype, shape);
  }
  View make(const Shape& shape) { return make(shape, type_); }
  // Uniform in [-size, size).
  View filled(const Shape& shape, float size = 1) {
    const View view = make(shape);
    const RandomKey key(1, Purpose::initialization, ++streams_, 0);
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const float value = size * (2 * to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i))) - 1);
      if (type_ == DType::f32) {
        view.as<float>()[i] = value;
      } else {
        view.as<Bf16>()[i] = from_float<Bf16>(value);
      }
    }
    return view;
  }

 private:
  Backend& backend_;
  DType type_;
  std::deque<Buffer> buffers_;
  std::uint32_t streams_ = 0;
};

struct Ready {
  std::function<void()> run;
  View result;
};

void run_case(const Settings& settings, Bounds& bounds, DType type, const std::string& name,
              const Shape& shape, double flop, double bytes, const std::function<Ready(Tensors&)>& prepare) {
  Tensors tensors(settings.backend, type), expected_tensors(settings.reference, type);
  const Ready ready = prepare(tensors), expected = prepare(expected_tensors);
  const Operation operation{
      name, fmt::format("\"shape\": \"{}\", \"type\": \"{}\"", shape.to_string(), name_of(type)), flop, bytes,
      type == DType::f32 ? 1e-4 : 1e-2};
  measure(settings, bounds, operation, ready.run, ready.result, expected.run, expected.result);
}

// ----------------------------------------------------------------------------------------------------------

struct Convolution {
  const char* what;
  std::int64_t in, extent, out;  // channels and pixels along a side
  Conv2d conv;
};

constexpr Conv2d one_by_one{1, 1, 1, 1, 0, 0, 1}, three_by_three{3, 3, 1, 1, 1, 1, 1};
const Convolution convolutions[] = {
    {"3x3", 64, 32, 64, three_by_three},
    {"1x1", 64, 32, 256, one_by_one},
    {"1x1", 256, 32, 64, one_by_one},
    {"3x3 stride 2", 128, 32, 128, {3, 3, 2, 2, 1, 1, 1}},
    {"1x1 stride 2", 256, 32, 512, {1, 1, 2, 2, 0, 0, 1}},
    {"3x3", 128, 16, 128, three_by_three},
    {"3x3", 256, 8, 256, three_by_three},
    {"3x3", 512, 4, 512, three_by_three},
    {"1x1", 512, 4, 2048, one_by_one},
    {"depthwise 3x3", 128, 32, 128, {3, 3, 1, 1, 1, 1, 128}},
    {"3x3 in 32 groups", 128, 32, 128, {3, 3, 1, 1, 1, 1, 32}},
};

void bench_convolution(const Settings& settings, Bounds& bounds, DType type, const Convolution& c) {
  const std::int64_t side = (c.extent + 2 * c.conv.pad_h - c.conv.kernel_h) / c.conv.stride_h + 1;
  const Shape x_shape{n, c.extent, c.extent, c.in}, y_shape{n, side, side, c.out},
      weight_shape{c.out, c.in / c.conv.groups, c.conv.kernel_h, c.conv.kernel_w};
  const double flop =
      2.0 * static_cast<double>(y_shape.elements()) * static_cast<double>(weight_shape.elements_from(1));
  const auto run = [&](const char* operation, const auto& prepare) {
    run_case(settings, bounds, type, fmt::format("{} {} to {}", operation, c.what, c.out), x_shape, flop, 0,
             prepare);
  };
  run("conv2d_forward", [&](Tensors& t) {
    const View x = t.filled(x_shape), weight = t.filled(weight_shape, 0.05f), y = t.make(y_shape);
    return Ready{[=, &t, &c] { t.backend().conv2d_forward(c.conv, x, weight, {}, Activation::none, y); }, y};
  });
  run("conv2d_backward_data", [&](Tensors& t) {
    const View dy = t.filled(y_shape), weight = t.filled(weight_shape, 0.05f), dx = t.make(x_shape);
    return Ready{[=, &t, &c] { t.backend().conv2d_backward_data(c.conv, dy, weight, dx); }, dx};
  });
  run("conv2d_backward_weights", [&](Tensors& t) {
    const View x = t.filled(x_shape), dy = t.filled(y_shape), dweight = t.make(weight_shape, DType::f32);
    return Ready{[=, &t, &c] { t.backend().conv2d_backward_weights(c.conv, x, dy, dweight, {}, false); },
                 dweight};
  });
}

// One operation that is bound by memory: what it makes of tensors, in all of which it touches so many elements.
void bench_memory(const Settings& settings, Bounds& bounds, DType type) {
  const Shape image{n, 32, 32, 64}, half{n, 16, 16, 64}, pooled{n, 1, 1, 64}, factors{n, 64};
  const auto size = static_cast<double>(image.elements());
  const auto run = [&](const char* name, double elements, const auto& prepare) {
    run_case(settings, bounds, type, name, image, 0, elements * static_cast<double>(size_of(type)), prepare);
  };
  // y = operation(x)
  const auto unary = [&](const char* name, const Shape& from, const Shape& to, const auto& operation) {
    run(name, static_cast<double>(from.elements() + to.elements()), [&](Tensors& t) {
      const View x = t.filled(from), y = t.make(to);
      return Ready{[=, &t] { operation(t.backend(), x, y); }, y};
    });
  };
  constexpr Pool2d whole{32, 32, 1, 1, 0, 0};
  unary("relu_forward", image, image, [](Backend& on, View x, View y) { on.relu_forward(x, y); });
  unary("swish_forward", image, image,
        [](Backend& on, View x, View y) { on.activation_forward(Activation::swish, x, y); });
  unary("avg_pool2d_forward", image, half,
        [](Backend& on, View x, View y) { on.avg_pool2d_forward({}, x, y); });
  unary("avg_pool2d_backward", half, image,
        [](Backend& on, View x, View y) { on.avg_pool2d_backward({}, x, y); });
  unary("global_average_pool_forward", image, pooled,
        [=](Backend& on, View x, View y) { on.avg_pool2d_forward(whole, x, y); });
  unary("global_average_pool_backward", pooled, image,
        [=](Backend& on, View x, View y) { on.avg_pool2d_backward(whole, x, y); });
  unary("copy_channels", image, image, [](Backend& on, View x, View y) { on.copy_channels(x, 0, y, 0, 64); });
  unary("channel_shuffle_2", image, image, [](Backend& on, View x, View y) { on.channel_shuffle(2, x, y); });
  unary("channel_shuffle_32", image, image,
        [](Backend& on, View x, View y) { on.channel_shuffle(32, x, y); });
  run("add_relu", 3 * size, [&](Tensors& t) {
    const View a = t.filled(image), b = t.filled(image), y = t.make(image);
    return Ready{[=, &t] { t.backend().add(a, b, Activation::relu, y); }, y};
  });
  run("scale_channels_forward", 2 * size, [&](Tensors& t) {
    const View x = t.filled(image), s = t.filled(factors), y = t.make(image);
    return Ready{[=, &t] { t.backend().scale_channels_forward(x, s, y); }, y};
  });
  run("scale_channels_backward", 3 * size, [&](Tensors& t) {
    const View x = t.filled(image), s = t.filled(factors), dy = t.filled(image), dx = t.make(image),
               ds = t.make(factors);
    return Ready{[=, &t] { t.backend().scale_channels_backward(x, s, dy, dx, ds); }, ds};
  });
}

}  // namespace

void bench_images(const Settings& settings, Bounds& bounds) {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const Convolution& c : convolutions) bench_convolution(settings, bounds, type, c);
    bench_memory(settings, bounds, type);
  }
}

}  // namespace motley::bench
