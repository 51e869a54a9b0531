// One training step of the mnist network (forward, backward, norm and clipping, Adadelta), driven by
// train_step.py: reads lines
// "<batch> <steps>" and answers each with the seconds per step and the last loss. Between lines it sleeps.
//   train_step_bench THREADS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "train/optimizer.h"
#include "train/task.h"
#include "train/update.h"

namespace {

using namespace motley;  // NOLINT: a program of one file

class Bench {
 public:
  Bench(int threads, std::int64_t max_batch)
      : backend_(make_cpu_backend(threads)), task_(train::make_task({})) {
    task_->allocate(*backend_, max_batch, true);
    task_->parameters().initialize(1);
    optimizer_ = train::make_optimizer({}, *backend_, task_->parameters());
    update_.emplace(*backend_, task_->sums(), task_->parameters(), *optimizer_, 25);
    source_.rows = static_cast<std::uint64_t>(max_batch);
    source_.fields.resize(2);
    source_.fields[0] = {"images", DType::u8, Shape{28, 28, 1}};
    source_.fields[1] = {"labels", DType::u8, Shape{}};
    window_.rows = source_.rows;
    window_.fields.resize(2);
    for (std::uint64_t i = 0; i < source_.rows * 784; ++i)
      window_.fields[0].push_back(static_cast<std::byte>(i * 7919 >> 3));
    for (std::uint64_t i = 0; i < source_.rows; ++i)
      window_.fields[1].push_back(static_cast<std::byte>(i % 10));
  }

  double step(std::int64_t batch) {
    ++step_;
    const View sums = update_->sums();
    backend_->fill_zero(sums);
    const Pass pass{*backend_, true, 1, static_cast<std::uint32_t>(step_), 0, false};
    task_->train(pass, {source_, window_, 0, batch}, {}, sums, {});
    double host[4];
    backend_->copy_to_host(host, sums.data, sizeof(host));
    update_->norm(host[1]);
    update_->step(1.0, step_);
    backend_->synchronize();
    return host[0] / host[1];
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<train::Task> task_;
  std::unique_ptr<train::Optimizer> optimizer_;
  std::optional<train::Update> update_;
  io::RowSource source_;
  io::Window window_;
  std::int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Bench bench(argc > 1 ? std::atoi(argv[1]) : 1, 256);
  std::int64_t batch = 0;
  int steps = 0;
  while (std::cin >> batch >> steps) {
    double loss = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) loss = bench.step(batch);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%.9f %.9f\n", seconds / steps, loss);
    std::fflush(stdout);
  }
  return 0;
}
