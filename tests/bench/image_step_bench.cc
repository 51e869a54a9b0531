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
#include <string>
#include <vector>

#include "clocks.h"
#include "image_step.h"
#include "kernels/cpu/onednn.h"
#include "models/image_archs.h"
#include "precision.h"

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

void answer(bench::ImageStep& step, std::int64_t n, std::int64_t count) {
  double loss = 0;
  const double start = bench::now_s(), cpu_start = bench::cpu_s();
  for (std::int64_t i = 0; i < count; ++i) loss = step.step();
  const double cpu = bench::cpu_s() - cpu_start, all = bench::now_s() - start;
  const auto per_step = [&](double seconds) { return 1e3 * seconds / static_cast<double>(count); };
  fmt::print(
      "{{\"ms\": {:.2f}, \"cpu_ms\": {:.2f}, \"gflop\": {:.1f}, \"loss\": {:.5f}, \"peak_mib\": {}}}\n",
      per_step(all), per_step(cpu), 6e-9 * static_cast<double>(n * step.multiply_adds()), loss, peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const auto backend = make_cpu_backend(threads);
  std::unique_ptr<bench::ImageStep> step;
  std::string made;
  for (std::string word; std::cin >> word;) {
    if (word == "peak") {
      fmt::print("{{\"gflops\": {:.1f}}}\n", peak_gflops(threads));
    } else {
      std::int64_t n = 0, count = 0;
      std::string precision;
      std::cin >> n >> precision >> count;
      if (const std::string wanted = fmt::format("{} {} {}", word, n, precision); wanted != made) {
        step.reset();
        const ImageArch& arch = find_image_arch(word);
        step = std::make_unique<bench::ImageStep>(*backend, arch, n, arch.input[0],
                                                  bench::type_of_precision(precision));
        made = wanted;
      }
      answer(*step, n, count);
    }
    std::fflush(stdout);
  }
}
