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
#include <optional>
#include <string>

#include "clocks.h"
#include "models/bert.h"
#include "models/bert_batch.h"
#include "train/optimizer.h"
#include "train/update.h"

namespace {

using namespace motley;  // NOLINT: a program of one file

long peak_mib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss >> 10;
}

// A batch of full sequences with as many masked tokens as NVIDIA's data has: 20 of 128, 80 of 512.
HostBertBatch make_batch(std::int64_t n, std::int64_t seq) {
  HostBertBatch batch;
  batch.clear(seq);
  batch.n = n;
  for (std::int64_t i = 0; i < n * seq; ++i) {
    batch.ids.push_back(static_cast<std::int32_t>(1 + i * 7919 % 30000));
    batch.types.push_back(i % seq < seq / 2 ? 0 : 1);
    batch.key_mask.push_back(1);
  }
  const std::int64_t masked = n * (seq * 5 / 32);
  for (std::int64_t i = 0; i < masked; ++i) {
    batch.masked_rows.push_back(static_cast<std::int32_t>(i * n * seq / masked));
    batch.masked_labels.push_back(static_cast<std::int32_t>(1 + i * 104729 % 30000));
  }
  for (std::int64_t i = 0; i < n; ++i) batch.next_sentence.push_back(static_cast<std::int32_t>(i % 2));
  return batch;
}

class Bench {
 public:
  Bench(Backend& backend, std::int64_t n, std::int64_t seq, DType type)
      : backend_(backend), bert_(BertConfig{}), host_(make_batch(n, seq)) {
    const BertMemory memory{n, seq, static_cast<std::int64_t>(host_.masked_rows.size()), true, type, false};
    bert_.allocate(backend, memory);
    batch_.reserve(backend, memory);
    bert_.parameters.initialize(1);
    train::OptimizerOptions options;
    options.name = "adamw";
    options.weight_decay = 0.01;
    optimizer_ = train::make_optimizer(options, backend, bert_.parameters);
    update_.emplace(backend, 8, bert_.parameters, *optimizer_, 1);
  }

  double step() {
    ++step_;
    const View sums = update_->sums();
    backend_.fill_zero(sums);
    const Pass pass{backend_, true, 1, static_cast<std::uint32_t>(step_), 0, false};
    bert_.train(pass, batch_.load(host_, true, bert_.config().pad_token_id),
                {1.0 / static_cast<double>(host_.masked_rows.size()), 1.0 / static_cast<double>(host_.n)},
                sums, {});
    update_->norm(1);
    update_->step(1e-5, step_);
    backend_.synchronize();
    double host[8];
    backend_.copy_to_host(host, sums.data, sizeof host);
    return host[0] / host[1] + host[4] / host[5];
  }

 private:
  Backend& backend_;
  Bert bert_;
  HostBertBatch host_;
  BertBatchMemory batch_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::optional<train::Update> update_;
  std::int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const auto backend = make_cpu_backend(argc > 1 ? std::atoi(argv[1]) : 1);
  std::unique_ptr<Bench> bench;
  std::string made;
  std::int64_t n = 0, seq = 0, count = 0;
  for (std::string precision; std::cin >> n >> seq >> precision >> count;) {
    const std::string wanted = fmt::format("{} {} {}", n, seq, precision);
    if (wanted != made) {
      bench.reset();
      bench = std::make_unique<Bench>(*backend, n, seq, precision == "bf16" ? DType::bf16 : DType::f32);
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
