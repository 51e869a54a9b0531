// The passes of batch normalisation, at layers of ResNet-50 in its CIFAR form and a batch of 32 images, in float32 and
// bfloat16.
#include <deque>

#include "core/bfloat16.h"
#include "core/philox.h"
#include "kernels/buffer.h"
#include "kernels_bench.h"

namespace motley::bench {
namespace {

class Layer {
 public:
  Layer(Backend& backend, DType dtype, const Shape& shape)
      : backend_(backend), type(dtype), count(static_cast<double>(shape.elements() / shape[-1])) {
    const Shape row{shape[-1]}, two_rows{2, shape[-1]};
    x = filled(shape), dy = filled(shape), residual = filled(shape), y = filled(shape), dx = filled(shape),
    dresidual = filled(shape);
    sums = make(two_rows, DType::f64), backward_sums = make(two_rows, DType::f64);
    mean = make(row), rstd = make(row), gamma = make(row), beta = make(row), running_mean = make(row);
    running_var = make(row), dgamma = make(row), dbeta = make(row);
    std::fill_n(gamma.as<float>(), row[0], 1.0f);
    statistics();
    backend_.batch_norm_statistics(sums, count, 1e-5, 0.1, mean, rstd, running_mean, running_var);
    forward();
    backward_of_sums();
  }

  void statistics() { backend_.batch_norm_sums(x, sums); }
  void forward() { backend_.batch_norm_forward(Activation::relu, x, {}, mean, rstd, gamma, beta, y); }
  void forward_residual() {
    backend_.batch_norm_forward(Activation::relu, x, residual, mean, rstd, gamma, beta, dresidual);
  }
  void backward_of_sums() {
    backend_.batch_norm_backward_sums(Activation::relu, x, {}, dy, mean, rstd, gamma, beta, backward_sums,
                                      dgamma, dbeta, false);
  }
  void backward() {
    backend_.batch_norm_backward(Activation::relu, x, {}, dy, mean, rstd, gamma, beta, backward_sums, count,
                                 dx, {});
  }
  void backward_residual() {
    backend_.batch_norm_backward(Activation::relu, x, y, dy, mean, rstd, gamma, beta, backward_sums, count,
                                 dx, dresidual);
  }

 private:
  View make(const Shape& shape, DType dtype = DType::f32) {
    buffers_.emplace_back(backend_, static_cast<std::size_t>(shape.elements()) * size_of(dtype));
    return buffers_.back().view(dtype, shape);
  }
  View filled(const Shape& shape) {
    const View view = make(shape, type);
    const RandomKey key(1, Purpose::initialization, ++streams_, 0);
    for (std::int64_t i = 0; i < shape.elements(); ++i) {
      const float value = 3 * to_unit_float(random_u32(key, 0, static_cast<std::uint32_t>(i))) - 1;
      if (type == DType::f32) {
        view.as<float>()[i] = value;
      } else {
        view.as<Bf16>()[i] = from_float<Bf16>(value);
      }
    }
    return view;
  }

  Backend& backend_;
  std::deque<Buffer> buffers_;
  std::uint32_t streams_ = 0;

 public:
  DType type;
  double count;
  View x, dy, residual, y, dx, dresidual, sums, backward_sums, mean, rstd, gamma, beta, running_mean,
      running_var, dgamma, dbeta;
};

struct Case {
  const char* name;
  void (Layer::*run)();
  View Layer::*result;
  double tensors;  // that are read or written
};

const Case cases[] = {
    {"batch_norm_sums", &Layer::statistics, &Layer::sums, 1},
    {"batch_norm_forward_relu", &Layer::forward, &Layer::y, 2},
    {"batch_norm_forward_residual_relu", &Layer::forward_residual, &Layer::dresidual, 3},
    {"batch_norm_backward_sums_relu", &Layer::backward_of_sums, &Layer::dgamma, 2},
    {"batch_norm_backward_relu", &Layer::backward, &Layer::dx, 3},
    {"batch_norm_backward_residual_relu", &Layer::backward_residual, &Layer::dx, 5},
};

}  // namespace

void bench_batch_norm(const Settings& settings, Bounds& bounds) {
  for (const Shape& shape : {Shape{32, 32, 32, 64}, Shape{32, 32, 32, 256}, Shape{32, 4, 4, 2048}}) {
    for (const DType type : {DType::f32, DType::bf16}) {
      Layer layer(settings.backend, type, shape), expected(settings.reference, type, shape);
      const std::string shown =
          "\"shape\": \"" + shape.to_string() + "\", \"type\": \"" + std::string(name_of(type)) + "\"";
      const double bytes = static_cast<double>(shape.elements()) * static_cast<double>(size_of(type));
      for (const Case& c : cases) {
        const Operation operation{c.name, shown, 0, c.tensors * bytes, type == DType::f32 ? 1e-4 : 1e-2};
        measure(
            settings, bounds, operation, [&] { (layer.*c.run)(); }, layer.*c.result,
            [&] { (expected.*c.run)(); }, expected.*c.result);
      }
    }
  }
}

}  // namespace motley::bench
