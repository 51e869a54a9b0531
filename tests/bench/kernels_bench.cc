// kernels_bench [THREADS [ROUNDS [PART]]]: the operations of the MNIST network's training step, of larger image networks,
// of a BERT layer, and of batch normalisation on the CPU, one line of JSON each. PART is one of mnist, images, bert and
// batch_norm.
//
//   ms        best time of one call over all rounds
//   gflops    multiplications and additions of the definition / time
//   gb_per_s  bytes of the arguments, each read or written once / time
//   bound     what this machine does at best, timed in turn with the operation: a 1024^3 sgemm (GFLOP/s),
//             or a copy that moves as many bytes (GB/s)
//   ratio     achieved / bound
//   correct   the result agrees with that of a single-threaded backend to 1e-4 of its norm (bfloat16: 1e-2)
#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/bfloat16.h"
#include "core/philox.h"
#include "kernels/backend.h"
#include "kernels/buffer.h"
#include "kernels_bench.h"

using namespace motley;
using namespace motley::bench;

namespace {

// The tensors of the MNIST network at one batch size, and its operations on them.
class Network {
 public:
  Network(Backend& backend, std::int64_t batch) : backend_(backend), n(batch) {
    images = filled({n, 28, 28, 1}, 1);
    weight1 = filled({32, 1, 3, 3}, 0.3f), bias1 = filled({32}, 0.1f);
    weight2 = filled({64, 32, 3, 3}, 0.06f), bias2 = filled({64}, 0.1f);
    weight3 = filled({128, 9216}, 0.01f), bias3 = filled({128}, 0.1f);
    weight4 = filled({10, 128}, 0.1f), bias4 = filled({10}, 0.1f);
    hidden1 = filled({n, 26, 26, 32}, 1), dhidden1 = filled(hidden1.shape, 1);
    hidden2 = filled({n, 24, 24, 64}, 1), dhidden2 = filled(hidden2.shape, 1);
    pooled = filled({n, 12, 12, 64}, 1), dpooled = filled(pooled.shape, 1);
    flat = filled({n, 64, 12, 12}, 1), dflat = filled(flat.shape, 1);
    hidden3 = filled({n, 128}, 1), dhidden3 = filled(hidden3.shape, 1);
    logits = filled({n, 10}, 1);
    argmax = make({n, 12, 12, 64}, DType::u8), labels = make({n}, DType::i32), sums = make({4}, DType::f64);
    dweight1 = filled(weight1.shape, 0), dbias1 = filled({32}, 0), dweight2 = filled(weight2.shape, 0);
    dbias2 = filled({64}, 0), dweight3 = filled(weight3.shape, 0), dbias3 = filled({128}, 0);
    dweight4 = filled(weight4.shape, 0), dbias4 = filled({10}, 0);
    parameters = filled({parameter_count}, 0.1f), gradients = filled({parameter_count}, 1);
    state1 = make({parameter_count}), state2 = make({parameter_count});
    scale = make({2}), sum_squares = make({1}, DType::f64), count = make({1}, DType::f64);
    const auto samples = static_cast<double>(n);
    backend_.copy_to_device(count.data, &samples, sizeof samples);
    optimizer_step();
    std::fill_n(static_cast<float*>(scale.data), 1, 1.0f / static_cast<float>(n));
  }

  View flattened(View x) const { return x.reshaped({n, 9216}); }

  void conv1_forward() { backend_.conv2d_forward(conv, images, weight1, bias1, Activation::relu, hidden1); }
  void conv2_forward() { backend_.conv2d_forward(conv, hidden1, weight2, bias2, Activation::relu, hidden2); }
  void conv2_backward_data() { backend_.conv2d_backward_data(conv, dhidden2, weight2, dhidden1); }
  void conv2_backward_weights() {
    backend_.conv2d_backward_weights(conv, hidden1, dhidden2, dweight2, dbias2, false);
  }
  void conv1_backward_weights() {
    backend_.conv2d_backward_weights(conv, images, dhidden1, dweight1, dbias1, false);
  }
  void pool_forward() { backend_.max_pool2d_forward({}, hidden2, pooled, argmax); }
  void pool_backward() { backend_.max_pool2d_backward({}, dpooled, argmax, dhidden2); }
  void relu_backward() { backend_.relu_backward(hidden2, dhidden2, dhidden2); }
  void dropout() { backend_.dropout({key, 0, 0.5}, flattened(flat), flattened(dflat)); }
  void dropout_channels() { backend_.dropout_channels({key, 0, 0.25}, pooled, dpooled); }
  void flatten() { backend_.nhwc_to_nchw(pooled, flat); }
  void linear_forward() {
    backend_.linear_forward(flattened(flat), weight3, bias3, Activation::relu, hidden3);
  }
  void linear_backward_data() { backend_.linear_backward_data(dhidden3, weight3, flattened(dflat)); }
  void linear_backward_weights() {
    backend_.linear_backward_weights(flattened(flat), dhidden3, dweight3, dbias3, false);
  }
  void adadelta() { backend_.adadelta_step({.lr = 0.1}, gradients, scale, parameters, state1, state2); }

  void optimizer_step() {
    backend_.sum_squares(gradients, sum_squares);
    backend_.gradient_scale(sum_squares, count, 0, scale);
    adadelta();
  }

  // Forward, backward and Adadelta, as the trainer calls them.
  void step() {
    conv1_forward();
    conv2_forward();
    pool_forward();
    backend_.dropout_channels({key, 0, 0.25}, pooled, pooled);
    flatten();
    linear_forward();
    backend_.dropout({key, 0, 0.5}, hidden3, dhidden3);
    backend_.linear_forward(dhidden3, weight4, bias4, Activation::none, logits);
    backend_.fill_zero(sums);
    backend_.softmax_nll(logits, labels, 1, sums, logits);
    backend_.linear_backward_weights(dhidden3, logits, dweight4, dbias4, false);
    backend_.linear_backward_data(logits, weight4, dhidden3);
    backend_.dropout({key, 0, 0.5}, dhidden3, dhidden3);
    backend_.relu_backward(hidden3, dhidden3, dhidden3);
    linear_backward_weights();
    linear_backward_data();
    backend_.nchw_to_nhwc(dflat, dpooled);
    backend_.dropout_channels({key, 0, 0.25}, dpooled, dpooled);
    pool_backward();
    relu_backward();
    conv2_backward_weights();
    conv2_backward_data();
    backend_.relu_backward(hidden1, dhidden1, dhidden1);
    conv1_backward_weights();
    optimizer_step();
  }

 private:
  View make(const Shape& shape, DType dtype = DType::f32) {
    buffers_.emplace_back(backend_, static_cast<std::size_t>(shape.elements()) * size_of(dtype));
    return buffers_.back().view(dtype, shape);
  }
  View filled(const Shape& shape, float size) {
    const View view = make(shape);
    const RandomKey fill(1, Purpose::initialization, ++streams_, 0);
    std::vector<float> values(static_cast<std::size_t>(shape.elements()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = size * (2 * to_unit_float(random_u32(fill, 0, static_cast<std::uint32_t>(i))) - 1);
    }
    backend_.copy_to_device(view.data, values.data(), view.bytes());
    return view;
  }

  Backend& backend_;
  std::vector<Buffer> buffers_;
  std::uint32_t streams_ = 0;

 public:
  static constexpr std::int64_t parameter_count = 1'199'882;
  const Conv2d conv{3, 3, 1, 1, 0, 0, 1};
  const RandomKey key{1, Purpose::dropout, 0, 0};
  std::int64_t n;
  View images, weight1, bias1, weight2, bias2, weight3, bias3, weight4, bias4, hidden1, dhidden1, hidden2,
      dhidden2;
  View pooled, dpooled, flat, dflat, hidden3, dhidden3, logits, argmax, labels, sums;
  View dweight1, dbias1, dweight2, dbias2, dweight3, dbias3, dweight4, dbias4;
  View parameters, gradients, state1, state2, scale, sum_squares, count;
};

struct Case {
  const char* name;
  void (Network::*run)();
  View Network::*result;
  double flop_per_sample;   // 0: the operation is bound by memory
  double bytes_per_sample;  // of the arguments
  double bytes_at_all;      // that do not grow with the batch
};

constexpr double f32 = 4;  // bytes
const Case cases[] = {
    {"conv1_forward", &Network::conv1_forward, &Network::hidden1, 2.0 * 676 * 32 * 9, 0, 0},
    {"conv1_backward_weights", &Network::conv1_backward_weights, &Network::dweight1, 2.0 * 676 * 32 * 9, 0,
     0},
    {"conv2_forward", &Network::conv2_forward, &Network::hidden2, 2.0 * 576 * 64 * 288, 0, 0},
    {"conv2_backward_data", &Network::conv2_backward_data, &Network::dhidden1, 2.0 * 576 * 64 * 288, 0, 0},
    {"conv2_backward_weights", &Network::conv2_backward_weights, &Network::dweight2, 2.0 * 576 * 64 * 288, 0,
     0},
    {"linear_forward", &Network::linear_forward, &Network::hidden3, 2.0 * 9216 * 128, 0, 0},
    {"linear_backward_data", &Network::linear_backward_data, &Network::dflat, 2.0 * 9216 * 128, 0, 0},
    {"linear_backward_weights", &Network::linear_backward_weights, &Network::dweight3, 2.0 * 9216 * 128, 0,
     0},
    {"max_pool_forward", &Network::pool_forward, &Network::pooled, 0, 36864 * f32 + 9216 * (f32 + 1), 0},
    {"max_pool_backward", &Network::pool_backward, &Network::dhidden2, 0, 36864 * f32 + 9216 * (f32 + 1), 0},
    {"relu_backward", &Network::relu_backward, &Network::dhidden2, 0, 3 * 36864 * f32, 0},
    {"dropout", &Network::dropout, &Network::dflat, 0, 2 * 9216 * f32, 0},
    {"dropout_channels", &Network::dropout_channels, &Network::dpooled, 0, 2 * 9216 * f32, 0},
    {"nhwc_to_nchw", &Network::flatten, &Network::flat, 0, 2 * 9216 * f32, 0},
    {"adadelta", &Network::adadelta, &Network::parameters, 0, 0, 7.0 * Network::parameter_count* f32},
    {"training_step", &Network::step, &Network::parameters,
     2.0 * (2 * 676 * 32 * 9 + 3 * 576 * 64 * 288 + 3 * 9216 * 128), 0, 0},
};

void run_case(const Case& c, const Settings& settings, std::int64_t batch, Bounds& bounds) {
  Network network(settings.backend, batch), expected(settings.reference, batch);
  const auto samples = static_cast<double>(batch);
  const Operation operation{c.name, fmt::format("\"batch\": {}", batch), c.flop_per_sample * samples,
                            c.bytes_per_sample * samples + c.bytes_at_all};
  measure(
      settings, bounds, operation, [&] { (network.*c.run)(); }, network.*c.result,
      [&] { (expected.*c.run)(); }, expected.*c.result);
}

double seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double value(const View& view, std::int64_t i) {
  if (view.dtype == DType::f64) return view.as<double>()[i];
  return static_cast<double>(view.dtype == DType::bf16 ? to_float(view.as<Bf16>()[i]) : view.as<float>()[i]);
}

bool agree(const View& a, const View& b, double tolerance) {
  double difference = 0, norm = 0;
  for (std::int64_t i = 0; i < a.elements(); ++i) {
    const double want = value(b, i), got = value(a, i);
    difference += (got - want) * (got - want), norm += want * want;
  }
  return std::sqrt(difference) <= tolerance * std::sqrt(norm);
}

constexpr std::size_t bound_size = 1024;

}  // namespace

namespace motley::bench {

Bounds::Bounds(int threads) : threads_(threads), a_(bound_size * bound_size, 0.5f), b_(a_), c_(a_) {}

double Bounds::gemm_seconds() {
  omp_set_num_threads(threads_);
  constexpr auto size = static_cast<dnnl_dim_t>(bound_size);
  return seconds([&] {
    dnnl_sgemm('N', 'N', size, size, size, 1, a_.data(), size, b_.data(), size, 0, c_.data(), size);
  });
}

double Bounds::copy_seconds(double bytes) {
  const auto floats = static_cast<std::size_t>(bytes / 8);
  from_.resize(std::max(from_.size(), floats), 1.0f), to_.resize(from_.size(), 0.0f);
  constexpr std::size_t block = 16384;
  return seconds([&] {
#pragma omp parallel for num_threads(threads_) schedule(static)
    for (std::size_t i = 0; i < floats; i += block) {
      std::memcpy(&to_[i], &from_[i], std::min(block, floats - i) * sizeof(float));
    }
  });
}

void measure(const Settings& settings, Bounds& bounds, const Operation& operation,
             const std::function<void()>& run, const View& result, const std::function<void()>& expected_run,
             const View& expected) {
  run();
  expected_run();
  const bool correct = agree(result, expected, operation.tolerance);
  const bool compute = operation.flop > 0;
  const double work = compute ? operation.flop : operation.bytes;
  double best = 1e30, bound = 1e30;
  for (int round = 0; round < settings.rounds; ++round) {
    bound = std::min(bound, compute ? bounds.gemm_seconds() : bounds.copy_seconds(work));
    for (int i = 0; i < 3; ++i) best = std::min(best, seconds(run));
  }
  const double rate = work / best / 1e9, bound_rate = (compute ? Bounds::gemm_flop : work) / bound / 1e9;
  fmt::print(
      "{{\"bench\": \"kernels\", \"op\": \"{}\", {}, \"threads\": {}, \"ms\": {:.4f}, \"{}\": {:.1f}, "
      "\"bound\": \"{}\", \"bound_rate\": {:.1f}, \"ratio\": {:.3f}, \"correct\": {}}}\n",
      operation.name, operation.size, settings.backend.device().threads, best * 1e3,
      compute ? "gflops" : "gb_per_s", rate, compute ? "sgemm_1024" : "copy", bound_rate, rate / bound_rate,
      correct);
  std::fflush(stdout);
}

}  // namespace motley::bench

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const auto backend = make_cpu_backend(threads), reference = make_cpu_backend(1);
  const Settings settings{*backend, *reference, argc > 2 ? std::atoi(argv[2]) : 20};
  const std::string part = argc > 3 ? argv[3] : "";
  if (argc > 3 && part != "mnist" && part != "images" && part != "bert" && part != "batch_norm") {
    fmt::print(stderr, "kernels_bench: there is no part {}: mnist, images, bert or batch_norm belongs there\n", part);
    return 2;
  }
  const auto wants = [&](const char* name) { return part.empty() || part == name; };
  Bounds bounds(threads);
  if (wants("mnist")) {
    for (const std::int64_t batch : {64, 256}) {
      for (const Case& c : cases) run_case(c, settings, batch, bounds);
    }
  }
  if (wants("images")) bench_images(settings, bounds);
  if (wants("bert")) bench_transformer(settings, bounds);
  if (wants("batch_norm")) bench_batch_norm(settings, bounds);
}
