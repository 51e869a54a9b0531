// What the programs that time training steps share: they read lines from standard input and answer each with one line of
// JSON, or with one that has an "error". tests/gpu/steps.py drives them beside PyTorch.
//
//   MODEL BATCH SIZE fp32|bf16|fp16 STEPS   times so many steps, after some that are not timed where the case is new. SIZE
//       is that of a sample: tokens, or pixels of a side. BATCH is a number of samples, or "fit": the largest power of
//       two, up to what the program has as the most, that takes less than 0.4 of the device's memory, so that a peer fits
//       beside it.
//   check MODEL SIZE fp32|bf16|fp16         two steps of a few samples, against the CPU backend in float32
//   drop                                    gives the memory of the last case back
#pragma once

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "bench.h"
#include "bench/clocks.h"
#include "bench/precision.h"

namespace motley::bench {

struct StepCase {
  std::string model, batch, precision;
  std::int64_t size = 0, steps = 1;
};

// The largest power of two of up to `most` samples for which memory_of(samples), in bytes, leaves room for a peer.
template <class MemoryOf>
std::int64_t fitting_batch(const Backend& backend, std::int64_t most, const MemoryOf& memory_of) {
  constexpr double share_of_memory = 0.4;
  const double memory = share_of_memory * static_cast<double>(backend.device().memory_limit_bytes);
  std::int64_t n = std::max<std::int64_t>(1, most);
  while (n > 1 && memory_of(n) > memory) n /= 2;
  return n;
}

// Of two steps: the largest relative difference of the losses, the second of which shows what the first step did to the
// parameters, and of a tenth of that of the gradients' norms.
template <class Step>
double difference_of_two_steps(Step& ours, Step& reference, double lr) {
  double error = 0;
  for (int i = 0; i < 2; ++i) {
    const double loss = ours.step(lr), want = reference.step(lr);
    // A NaN is larger than all.
    const double difference =
        std::max(std::abs(loss / want - 1), 0.1 * std::abs(ours.norm() / reference.norm() - 1));
    if (!(difference <= error)) error = difference;
  }
  return error;
}

// `Step` is made by derived classes and has a `rate` and double step(rate, stretch): the loss, and whether the passes are a stretch of the
// backend (on a GPU: CUDA graphs), as in the trainer.
template <class Step>
class StepBench {
 public:
  explicit StepBench(const Settings& settings)
      : backend_(open_device(settings.device, true)), ceilings_(*backend_, settings.size) {}
  virtual ~StepBench() = default;

  // Until standard input ends.
  void answer_lines() {
    for (std::string line; std::getline(std::cin, line);) {
      try {
        print(answer(line));
      } catch (const Error& error) {
        drop();  // what an out-of-memory error leaves is of no use
        print({{"error", error.what()}});
      }
    }
  }

 protected:
  virtual Record time(const StepCase& wanted) = 0;
  virtual Record check(const StepCase& wanted) = 0;

  struct Timed {
    double seconds = 0, loss = 0;
    double plain_s = 0;  // on a GPU: of a step without CUDA graphs, in turn
  };
  // Seconds per step of the case, which make() makes where it is another than that of the last line.
  template <class Make>
  Timed time_steps(const StepCase& wanted, std::int64_t n, const Make& make) {
    const std::string name = fmt::format("{} {} {} {}", wanted.model, n, wanted.size, wanted.precision);
    if (name != made_) {
      drop();
      step_ = make();
      // Once as it is, once rehearsed and captured, once with the graphs that there are.
      for (int i = 0; i < 3; ++i) step_->step();
      made_ = name;
    }
    Timed result;
    const auto seconds_of_step = [&](bool graphs) {
      const double start = now_s();
      for (std::int64_t i = 0; i < wanted.steps; ++i) result.loss = step_->step(Step::rate, graphs);
      return std::max((now_s() - start) / static_cast<double>(wanted.steps), 1e-9);
    };
    if (backend_->device().kind == "cuda") result.plain_s = seconds_of_step(false);
    result.seconds = seconds_of_step(true);
    return result;
  }
  void drop() {
    step_.reset();
    made_.clear();
    backend_->release_scratch();
  }
  Backend& backend() { return *backend_; }
  Ceilings& ceilings() { return ceilings_; }
  const Step& step() const { return *step_; }

 private:
  Record answer(const std::string& line) {
    std::istringstream words(line);
    StepCase wanted;
    words >> wanted.model;
    if (wanted.model == "drop") {
      drop();
      return {{"dropped", true}};
    }
    if (wanted.model == "check") {
      if (!(words >> wanted.model >> wanted.size >> wanted.precision))
        fail(ExitCode::usage, "not a line: {}", line);
      drop();
      return check(wanted);
    }
    if (!(words >> wanted.batch >> wanted.size >> wanted.precision >> wanted.steps) || wanted.size < 8 ||
        wanted.steps < 1)
      fail(ExitCode::usage, "not a line: {}", line);
    return time(wanted);
  }

  std::unique_ptr<Backend> backend_;
  Ceilings ceilings_;
  std::unique_ptr<Step> step_;
  std::string made_;
};

// main() of such a program.
template <class Program>
int run_step_bench(const char* name, const char* what, int argc, char** argv) {
  return run_main(name, [&] {
    const Settings settings = parse_settings(argc, argv);
    if (settings.help) {
      fmt::print(
          "{} [--device cuda|cpu] [--size full|quick|tiny]\n"
          "Times training steps of {}: reads lines MODEL BATCH SIZE PRECISION STEPS (docs/gpu.md).\n",
          name, what);
      return 0;
    }
    Program(settings).answer_lines();
    return 0;
  });
}

}  // namespace motley::bench
