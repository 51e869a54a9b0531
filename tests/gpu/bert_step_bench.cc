// gpu_bert_step_bench [--device cuda|cpu] [--size full|quick|tiny]: training steps of BERT on one GPU with the
// program's own network, optimizer and update, every step as the trainer makes it (it waits for the norm of the
// gradient and for the loss). Reads lines from standard input and answers each with one line of JSON, or with one
// that has an "error"; tests/gpu/bert_step.py drives it beside PyTorch.
//
//   MODEL BATCH SEQ fp32|bf16|fp16 STEPS    times so many steps, after some that are not timed where the case is new.
//       MODEL is large, base or tiny. BATCH is a number of sequences, or "fit": the largest power of two, of up to
//       32768 tokens, that takes less than 0.4 of the device's memory, so that a peer fits beside it.
//   check MODEL SEQ fp32|bf16|fp16          two steps of one sequence, against the CPU backend in float32
//   drop                                    gives the memory of the last case back
//
//   ms                 of one step, on the clock
//   plain_ms           on a GPU: the same without CUDA graphs, in turn
//   sequences_per_s    batch / time
//   tflops             flops / time; the flops of a step are 6 * (parameters of the encoder's matrices) * tokens for
//                      its products (2 forward, 4 backward), and 12 * layers * hidden * seq * tokens for the two
//                      products of attention. Embeddings, heads and the recomputed scores of attention do not count.
//   mfu                tflops over the rate of a large square product of the same type, measured in this process
#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "bench.h"
#include "bench/bert_step.h"
#include "bench/clocks.h"

namespace {

using namespace motley;         // NOLINT: a program of one file
using namespace motley::bench;  // NOLINT

constexpr double share_of_memory = 0.4;
constexpr std::int64_t most_tokens = 32768;

BertConfig config_of(const std::string& model) {
  BertConfig config;  // base
  if (model == "large") {
    config.hidden_size = 1024;
    config.layers = 24;
    config.heads = 16;
    config.intermediate_size = 4096;
  } else if (model == "tiny") {
    config.vocab_size = 101;
    config.hidden_size = 16;
    config.layers = 2;
    config.heads = 2;
    config.intermediate_size = 64;
  } else if (model != "base") {
    fail(ExitCode::usage, "there is no model {}: expected large, base or tiny", model);
  }
  return config;
}

double flop_of_step(const BertConfig& config, std::int64_t n, std::int64_t seq) {
  const auto hidden = static_cast<double>(config.hidden_size), layers = static_cast<double>(config.layers);
  const double matrices =
      layers * (4 * hidden * hidden + 2 * hidden * static_cast<double>(config.intermediate_size));
  const auto tokens = static_cast<double>(n * seq);
  return (6 * matrices + 12 * layers * hidden * static_cast<double>(seq)) * tokens;
}

// Parameters, gradients, two states, the copy in the compute type, and activations.
double memory_of(const BertConfig& config, std::int64_t n, std::int64_t seq, DType type) {
  const Bert bert(config);
  const BertMemory size{n, seq, masked_tokens(n, seq), true, type, false};
  const auto parameters = static_cast<double>(bert.parameters.count());
  return parameters * (4 * sizeof(float) + (type == DType::f32 ? 0.0 : 2.0)) +
         static_cast<double>(bert.memory_bytes(size) + BertBatchMemory::memory_bytes(size));
}

class Program {
 public:
  explicit Program(const Settings& settings)
      : settings_(settings),
        backend_(open_device(settings.device, true)),
        ceilings_(*backend_, settings.size) {}

  Record answer(const std::string& line) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "drop") {
      drop();
      return {{"dropped", true}};
    }
    std::string batch, precision;
    std::int64_t seq = 0, steps = 1;
    if (first == "check") {
      std::string model;
      if (!(words >> model >> seq >> precision)) fail(ExitCode::usage, "not a line: {}", line);
      return check(model, seq, precision);
    }
    if (!(words >> batch >> seq >> precision >> steps) || seq < 8 || steps < 1)
      fail(ExitCode::usage, "not a line: {}", line);
    return time(first, batch, seq, precision, steps);
  }

  // What an out-of-memory error leaves is of no use.
  void drop() {
    step_.reset();
    made_.clear();
    backend_->release_scratch();
  }

 private:
  std::int64_t fitting_batch(const BertConfig& config, std::int64_t seq, DType type) const {
    const double memory = share_of_memory * static_cast<double>(backend_->device().memory_limit_bytes);
    std::int64_t n = std::max<std::int64_t>(1, most_tokens / seq);
    while (n > 1 && memory_of(config, n, seq, type) > memory) n /= 2;
    return n;
  }

  Record time(const std::string& model, const std::string& batch, std::int64_t seq,
              const std::string& precision, std::int64_t steps) {
    const BertConfig config = config_of(model);
    const DType type = type_of_precision(precision);
    const std::int64_t n = batch == "fit" ? fitting_batch(config, seq, type) : std::stoll(batch);
    const std::string wanted = fmt::format("{} {} {} {}", model, n, seq, precision);
    if (wanted != made_) {
      drop();
      step_ = std::make_unique<BertStep>(*backend_, config, n, seq, type);
      // Once as it is, once rehearsed and captured, once with the graphs that there are.
      for (int i = 0; i < 3; ++i) step_->step();
      made_ = wanted;
    }
    double loss = 0;
    const auto seconds_of_step = [&](bool graphs) {
      const double start = now_s();
      for (std::int64_t i = 0; i < steps; ++i) loss = step_->step(1e-5, graphs);
      return std::max((now_s() - start) / static_cast<double>(steps), 1e-9);
    };
    const bool has_graphs = backend_->device().kind == "cuda";
    const double plain_s = has_graphs ? seconds_of_step(false) : 0;
    const double seconds = seconds_of_step(true);
    const double flop_per_s = flop_of_step(config, n, seq) / seconds;
    Record record{{"bench", "bert_step"},
                  {"model", model},
                  {"batch", n},
                  {"seq", seq},
                  {"precision", precision},
                  {"ms", 1e3 * seconds},
                  {"sequences_per_s", static_cast<double>(n) / seconds},
                  {"tflops", flop_per_s / 1e12},
                  {"mfu", flop_per_s / ceilings_.matmul_flop_per_s(type)},
                  {"loss", loss},
                  // Of a network that knows nothing yet: ln(words) + ln(2).
                  {"correct", std::isfinite(loss) &&
                                  loss < 1.2 * std::log(2.0 * static_cast<double>(config.vocab_size))},
                  {"memory_mib", backend_->allocated_bytes() >> 20}};
    if (has_graphs) record["plain_ms"] = 1e3 * plain_s;
    return record;
  }

  Record check(const std::string& model, std::int64_t seq, const std::string& precision) {
    drop();
    const DType type = type_of_precision(precision);
    const auto cpu = open_device("cpu");
    BertStep ours(*backend_, config_of(model), 1, seq, type),
        reference(*cpu, config_of(model), 1, seq, DType::f32);
    double error = 0;
    // The second loss shows what the first step did to the parameters.
    for (int i = 0; i < 2; ++i) {
      const double loss = ours.step(1e-4), want = reference.step(1e-4);
      error =
          std::max({error, std::abs(loss / want - 1), 0.1 * std::abs(ours.norm() / reference.norm() - 1)});
    }
    const double tolerance = type == DType::f32 ? 1e-4 : 2e-2;
    return {{"bench", "bert_check"},  {"model", model},      {"seq", seq},
            {"precision", precision}, {"difference", error}, {"correct", error < tolerance}};  // NaN is not
  }

  Settings settings_;
  std::unique_ptr<Backend> backend_;
  Ceilings ceilings_;
  std::unique_ptr<BertStep> step_;
  std::string made_;
};

int run(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  if (settings.help) {
    fmt::print(
        "gpu_bert_step_bench [--device cuda|cpu] [--size full|quick|tiny]\n"
        "Times training steps of BERT: reads lines MODEL BATCH SEQ PRECISION STEPS (docs/gpu.md).\n");
    return 0;
  }
  Program program(settings);
  for (std::string line; std::getline(std::cin, line);) {
    try {
      print(program.answer(line));
    } catch (const Error& error) {
      program.drop();
      print({{"error", error.what()}});
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_main("gpu_bert_step_bench", [&] { return run(argc, argv); });
}
