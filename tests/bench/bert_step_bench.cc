// bert_step_bench [THREADS]: training steps of BERT-base on the CPU with the program's own network and optimizer:
// forward, backward, clipping, AdamW. Reads lines "BATCH SEQ fp32|bf16 COUNT" from standard input and answers
// each with one line of JSON: milliseconds per step (on the clock, and of processor time), the loss, and the
// most memory held. tests/bench/bert_step.py drives it beside PyTorch. Between lines it sleeps.
#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "bert_step.h"
#include "clocks.h"
#include "precision.h"

namespace {

using namespace motley;  // NOLINT: a program of one file

long peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = make_cpu_backend(argc > 1 ? std::atoi(argv[1]) : 1);
  std::unique_ptr<bench::BertStep> bench;
  std::string made;
  std::int64_t n = 0, seq = 0, count = 0;
  for (std::string precision; std::cin >> n >> seq >> precision >> count;) {
    const std::string wanted = fmt::format("{} {} {}", n, seq, precision);
    if (wanted != made) {
      bench.reset();
      bench = std::make_unique<bench::BertStep>(*backend, BertConfig{}, n, seq,
                                                bench::type_of_precision(precision));
      made = wanted;
    }
    double loss = 0;
    const double start = bench::now_s();
    const double cpu_start = bench::cpu_s();
    for (std::int64_t i = 0; i < count; ++i) loss = bench->step();
    const double cpu = bench::cpu_s() - cpu_start;
    const double all = bench::now_s() - start;
    const auto per_step = [&](double seconds) { return 1e3 * seconds / static_cast<double>(count); };
    fmt::print("{{\"ms\": {:.2f}, \"cpu_ms\": {:.2f}, \"loss\": {:.5f}, \"peak_mib\": {}}}\n", per_step(all),
               per_step(cpu), loss, peak_mib());
    std::fflush(stdout);
  }
}
