// What the cases of kernels_bench share: the machine's bounds, and the line that a case prints.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/view.h"
#include "kernels/backend.h"

namespace motley::bench {

struct Settings {
  Backend& backend;
  Backend& reference;  // of one thread: what the results are compared with
  int rounds = 20;
};

// One case on one model: what it does, what it writes, and how much work that is.
struct Operation {
  std::string name, size;   // size: batch and type, as the line shows them
  double flop = 0;          // 0: the operation is bound by memory
  double bytes = 0;         // of the arguments
  double tolerance = 1e-4;  // of the result's norm
};

// What the machine does at best, timed beside the operations on as many threads.
class Bounds {
 public:
  explicit Bounds(int threads);
  double gemm_seconds();
  double copy_seconds(double bytes);  // moves `bytes` in all: half of them read, half written
  static constexpr double gemm_flop = 2.0 * 1024 * 1024 * 1024;

 private:
  int threads_;
  std::vector<float> a_, b_, c_, from_, to_;
};

// Runs `run` on both backends' models, times it, and prints the line.
void measure(const Settings& settings, Bounds& bounds, const Operation& operation,
             const std::function<void()>& run, const View& result, const std::function<void()>& expected_run,
             const View& expected);

void bench_images(const Settings& settings, Bounds& bounds);       // kernels_bench_images.cc
void bench_transformer(const Settings& settings, Bounds& bounds);  // kernels_bench_transformer.cc
void bench_batch_norm(const Settings& settings, Bounds& bounds);   // kernels_bench_batch_norm.cc

}  // namespace motley::bench
