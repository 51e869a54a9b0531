// gpu_bert_step_bench [--device cuda|cpu] [--size full|quick|tiny]: training steps of BERT on one GPU with the
// program's own network, optimizer and update, every step as the trainer makes it (it waits for the norm of the
// gradient and for the loss). Reads lines and answers them as step_bench.h says; MODEL is large, base or tiny, SIZE the
// tokens of a sequence, and a batch that fits has at most 32768 tokens. tests/gpu/bert_step.py drives it beside PyTorch.
//
//   ms                 of one step, on the clock
//   plain_ms           on a GPU: the same without CUDA graphs, in turn
//   sequences_per_s    batch / time
//   tflops             flops / time; the flops of a step are 6 * (parameters of the encoder's matrices) * tokens for
//                      its products (2 forward, 4 backward), and 12 * layers * hidden * seq * tokens for the two
//                      products of attention. Embeddings, heads and the recomputed scores of attention do not count.
//   mfu                tflops over the rate of a large square product of the same type, measured in this process
#include <string>

#include "bench/bert_step.h"
#include "step_bench.h"

namespace {

using namespace motley;         // NOLINT: a program of one file
using namespace motley::bench;  // NOLINT

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

class Program final : public StepBench<BertStep> {
 public:
  using StepBench::StepBench;

 protected:
  Record time(const StepCase& wanted) override {
    const BertConfig config = config_of(wanted.model);
    const DType type = type_of_precision(wanted.precision);
    const std::int64_t seq = wanted.size;
    const auto memory_of_batch = [&](std::int64_t n) { return memory_of(config, n, seq, type); };
    const std::int64_t n = wanted.batch == "fit"
                               ? fitting_batch(backend(), most_tokens / seq, memory_of_batch)
                               : std::stoll(wanted.batch);
    const Timed timed =
        time_steps(wanted, n, [&] { return std::make_unique<BertStep>(backend(), config, n, seq, type); });
    const double flop_per_s = flop_of_step(config, n, seq) / timed.seconds;
    Record record{{"bench", "bert_step"},
                  {"model", wanted.model},
                  {"batch", n},
                  {"seq", seq},
                  {"precision", wanted.precision},
                  {"ms", 1e3 * timed.seconds},
                  {"sequences_per_s", static_cast<double>(n) / timed.seconds},
                  {"tflops", flop_per_s / 1e12},
                  {"mfu", flop_per_s / ceilings().matmul_flop_per_s(type)},
                  {"loss", timed.loss},
                  // Of a network that knows nothing yet: ln(words) + ln(2).
                  {"correct", std::isfinite(timed.loss) &&
                                  timed.loss < 1.2 * std::log(2.0 * static_cast<double>(config.vocab_size))},
                  {"memory_mib", backend().allocated_bytes() >> 20}};
    if (timed.plain_s > 0) record["plain_ms"] = 1e3 * timed.plain_s;
    return record;
  }

  Record check(const StepCase& wanted) override {
    const BertConfig config = config_of(wanted.model);
    const DType type = type_of_precision(wanted.precision);
    const auto cpu = open_device("cpu");
    BertStep ours(backend(), config, 1, wanted.size, type),
        reference(*cpu, config, 1, wanted.size, DType::f32);
    const double error = difference_of_two_steps(ours, reference, 1e-4);
    const double tolerance = type == DType::f32 ? 1e-4 : 2e-2;
    return {{"bench", "bert_check"}, {"model", wanted.model},
            {"seq", wanted.size},    {"precision", wanted.precision},
            {"difference", error},   {"correct", error < tolerance}};  // NaN is not
  }
};

}  // namespace

int main(int argc, char** argv) {
  return run_step_bench<Program>("gpu_bert_step_bench", "BERT", argc, argv);
}
