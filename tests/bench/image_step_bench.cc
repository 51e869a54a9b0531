// image_step_bench [THREADS]: training steps of an image network on the CPU with the program's own layers, optimizer and
// update: forward, backward, SGD. Reads lines "ARCH BATCH fp32|bf16 COUNT" from standard input and answers each with one
// line of JSON: milliseconds per step (on the clock, and of processor time), what a step multiplies and adds, the loss,
// and the most memory held; to "peak" it answers with the machine's fastest matrix product.
// tests/bench/image_step.py drives it beside PyTorch. Between lines it sleeps.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bert_step.h"
#include "clocks.h"
#include "kernels/cpu/onednn.h"
#include "models/image_archs.h"

namespace {

using namespace motley;  // NOLINT: a program of one file

long peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

// The best of several products of 2048 x 2048 x 2048 in float32, the weights in the layout that oneDNN likes best.
double peak_gflops(int threads) {
  constexpr dnnl_dim_t size = 2048;
  constexpr int rounds = 7;
  return onednn::call("peak", threads, [&] {
    const onednn::Desc plain = onednn::desc_f32({size, size}, onednn::Tag::ab);
    const auto pd =
        onednn::matmul_descriptor(plain, onednn::desc_f32({size, size}, onednn::Tag::any), {}, plain, {});
    const dnnl::matmul product(pd);
    std::vector<float> a(size * size, 0.5f), b(pd.weights_desc().get_size() / sizeof(float), 0.5f), c(a);
    dnnl::stream stream(onednn::engine());
    double best_s = 1e30;
    for (int round = 0; round < rounds; ++round) {
      const double start = bench::now_s();
      product.execute(stream, {{DNNL_ARG_SRC, onednn::bind(plain, a.data())},
                               {DNNL_ARG_WEIGHTS, onednn::bind(pd.weights_desc(), b.data())},
                               {DNNL_ARG_DST, onednn::bind(plain, c.data())}});
      stream.wait();
      best_s = std::min(best_s, bench::now_s() - start);
    }
    return 2e-9 * size * size * size / best_s;
  });
}

class Bench {
 public:
  Bench(Backend& backend, const std::string& arch, std::int64_t n, DType type)
      : backend_(backend), network_(make(arch)), type_(type), n_(n) {
    const Shape image = network_->body.input_shape();
    network_->parameters.allocate(backend, true, type);
    network_->parameters.initialize(1);
    network_->body.reserve(backend, n, true, type);
    const Shape pixels = image.with_batch(n);
    const auto elements = static_cast<std::size_t>(pixels.elements());
    pixels_ = Buffer(backend, elements);
    input_ = Buffer(backend, elements * size_of(type));
    labels_ = Buffer(backend, static_cast<std::size_t>(n) * sizeof(std::int32_t));
    dlogits_ = Buffer(backend, static_cast<std::size_t>(n * network_->classes) * size_of(type));
    std::vector<std::uint8_t> bytes;
    for (std::size_t i = 0; i < elements; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 7919 >> 3));
    std::vector<std::int32_t> classes;
    for (std::int64_t i = 0; i < n; ++i) classes.push_back(static_cast<std::int32_t>(i % network_->classes));
    backend.copy_to_device(pixels_.data(), bytes.data(), pixels_.bytes());
    backend.copy_to_device(labels_.data(), classes.data(), labels_.bytes());
    train::OptimizerOptions options;
    options.name = "sgd";
    options.momentum = 0.9;
    options.nesterov = true;
    options.weight_decay = 5e-4;
    optimizer_ = train::make_optimizer(options, backend, network_->parameters);
    update_.emplace(backend, 4, network_->parameters, *optimizer_, 0);
  }

  double gflop() const { return 6e-9 * static_cast<double>(n_ * network_->body.multiply_adds()); }

  // The mean loss.
  double step() {
    ++step_;
    const View sums = update_->sums();
    backend_.fill_zero(sums);
    network_->parameters.refresh_copy();
    const Pass pass{backend_, true, 1, static_cast<std::uint32_t>(step_), 0, false};
    const Shape shape = network_->body.input_shape().with_batch(n_);
    const View x = input_.view(type_, shape);
    const float mean[] = {0.49f, 0.48f, 0.45f}, deviation[] = {0.25f, 0.24f, 0.26f};
    backend_.normalize_images(pixels_.view(DType::u8, shape), mean, deviation, x);
    const View logits = network_->body.forward(pass, x);
    const View dlogits = dlogits_.view(type_, logits.shape);
    backend_.softmax_nll(logits, labels_.view(DType::i32, Shape{n_}), 5, sums, dlogits, 1);
    network_->body.backward(pass, x, dlogits, {});
    update_->norm(static_cast<double>(n_));
    update_->step(1e-3, step_);
    backend_.synchronize();
    double host[4];
    backend_.copy_to_host(host, sums.data, sizeof host);
    return host[0] / host[1];
  }

 private:
  static std::unique_ptr<ImageNetwork> make(const std::string& name) {
    const ImageArch& arch = find_image_arch(name);
    return arch.make(arch.input, arch.classes);
  }

  Backend& backend_;
  std::unique_ptr<ImageNetwork> network_;
  DType type_;
  std::int64_t n_, step_ = 0;
  Buffer pixels_, input_, labels_, dlogits_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::optional<train::Update> update_;
};

void answer(Bench& bench, std::int64_t count) {
  double loss = 0;
  const double start = bench::now_s(), cpu_start = bench::cpu_s();
  for (std::int64_t i = 0; i < count; ++i) loss = bench.step();
  const double cpu = bench::cpu_s() - cpu_start, all = bench::now_s() - start;
  const auto per_step = [&](double seconds) { return 1e3 * seconds / static_cast<double>(count); };
  fmt::print(
      "{{\"ms\": {:.2f}, \"cpu_ms\": {:.2f}, \"gflop\": {:.1f}, \"loss\": {:.5f}, \"peak_mib\": {}}}\n",
      per_step(all), per_step(cpu), bench.gflop(), loss, peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const auto backend = make_cpu_backend(threads);
  std::unique_ptr<Bench> bench;
  std::string made;
  for (std::string word; std::cin >> word;) {
    if (word == "peak") {
      fmt::print("{{\"gflops\": {:.1f}}}\n", peak_gflops(threads));
    } else {
      std::int64_t n = 0, count = 0;
      std::string precision;
      std::cin >> n >> precision >> count;
      if (const std::string wanted = fmt::format("{} {} {}", word, n, precision); wanted != made) {
        bench.reset();
        bench = std::make_unique<Bench>(*backend, word, n, bench::type_of_precision(precision));
        made = wanted;
      }
      answer(*bench, count);
    }
    std::fflush(stdout);
  }
}
