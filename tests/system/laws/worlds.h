// Training runs on worlds of different sizes, in one test under mpirun.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/subprocess.h"
#include "train/trainer.h"

namespace motley::train {

struct Trace {
  std::vector<double> losses;
  std::vector<float> first_gradient;  // summed over the global batch, as the arena holds it
  double first_count = 0;
  // Of the last step. In the first one gradients are not summed beside the backward pass yet (train/stepper.cc).
  std::vector<float> last_gradient;
  double last_count = 0;
  std::vector<float> parameters;  // in the end, and statistics
  // Running statistics of batch norm: after the last step, when ranks may have their own, and in the end.
  std::vector<float> last_statistics, statistics;
  std::vector<std::int64_t> shares, micro_batches;  // of this rank, step by step
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Law 4: a run of `steps` that was stopped after `stop` and continued has the bits of the one that was not.
inline void expect_continued(const Trace& uninterrupted, const Trace& before, const Trace& after,
                             std::int64_t steps, std::int64_t stop, const std::string& what) {
  std::vector<double> expected = uninterrupted.losses;
  EXPECT_EQ(expected.size(), static_cast<std::size_t>(steps)) << what;
  expected.erase(expected.begin(), expected.begin() + std::min<std::ptrdiff_t>(stop, std::ssize(expected)));
  EXPECT_EQ(after.losses, expected) << what;
  EXPECT_TRUE(same_bits(after.parameters, uninterrupted.parameters)) << what;
  EXPECT_FALSE(same_bits(before.parameters, uninterrupted.parameters)) << what;
}

inline double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

// Law 1: the losses of two runs, of as many steps. Gives the largest relative difference.
inline double expect_same_losses(const Trace& one, const Trace& other, double tolerance,
                                 const std::string& what) {
  EXPECT_EQ(other.losses.size(), one.losses.size()) << what;
  double worst = 0;
  for (std::size_t i = 0; i < std::min(one.losses.size(), other.losses.size()); ++i) {
    EXPECT_NEAR(other.losses[i], one.losses[i], tolerance * one.losses[i]) << what << ", step " << i + 1;
    worst = std::max(worst, std::abs(other.losses[i] / one.losses[i] - 1));
  }
  return worst;
}

class Worlds : public ::testing::Test {
 protected:
  Worlds() : world_(MPI_COMM_WORLD, deadline_s) {
    std::string path;
    if (world_.rank() == 0) {
      directory_ = std::make_unique<test::TemporaryDirectory>();
      path = directory_->path().string();
    }
    path_ = world_.broadcast(path, 0, "the directory");
  }
  ~Worlds() override { world_.barrier("the end of the test"); }

  static std::vector<float> on_host(Backend& backend, const ConstView& arena) {
    std::vector<float> values(static_cast<std::size_t>(arena.elements()));
    backend.copy_to_host(values.data(), arena.data, arena.bytes());
    return values;
  }

  // Trains on the first `ranks` ranks; the others wait and return an empty trace. `meddle` is called after each step.
  using Meddle = std::function<void(const StepResult&, Trainer&)>;
  Trace train(int ranks, const TrainOptions& options, const Meddle& meddle = {}) const {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_.rank() < ranks ? 0 : MPI_UNDEFINED, world_.rank(), &part);
    Trace trace;
    if (part != MPI_COMM_NULL) {
      const comm::Communicator world(part, deadline_s);
      Trainer trainer(options, world);
      trainer.observe([&](const StepResult& result) {
        if (meddle) meddle(result, trainer);
        trace.losses.push_back(result.loss);
        trace.shares.push_back(result.n);
        trace.micro_batches.push_back(static_cast<std::int64_t>(result.micro_batches));
        if (result.step == options.max_update) {
          trace.last_gradient = on_host(trainer.backend(), result.gradients);
          trace.last_count = result.count;
          trace.last_statistics = on_host(trainer.backend(), trainer.parameters().statistics());
        }
        if (!trace.first_gradient.empty()) return;
        trace.first_gradient = on_host(trainer.backend(), result.gradients);
        trace.first_count = result.count;
      });
      trainer.run();
      trace.parameters = on_host(trainer.backend(), trainer.parameters().stored());
      trace.statistics = on_host(trainer.backend(), trainer.parameters().statistics());
      MPI_Comm_free(&part);
    }
    world_.barrier("the other ranks");
    return trace;
  }

  static TrainOptions with_weights(TrainOptions options, const std::string& weights) {
    options.batch.policy = "static";
    options.batch.weights = weights;
    return options;
  }

  // Losses and first gradient of `other` against those of `one`, on rank 0.
  void expect_same(const Trace& one, const Trace& other, double loss_tolerance, double gradient_tolerance,
                   const std::string& what) const {
    if (world_.rank() != 0) return;
    const double losses = expect_same_losses(one, other, loss_tolerance, what),
                 gradient = relative_distance(other.first_gradient, one.first_gradient);
    EXPECT_LT(gradient, gradient_tolerance) << what;
    std::printf("%s: largest relative difference of a loss %.1e, of the first gradient %.1e\n", what.c_str(),
                losses, gradient);
  }

  // Whether all is well on every rank. A rank that alone left a loop of collectives would let the others
  // wait: where checks are made inside of one, all leave together.
  bool all_well() const {
    double failures[] = {HasFailure() ? 1.0 : 0.0};
    world_.all_reduce_max(failures, "the verdict");
    return failures[0] == 0;
  }

  static constexpr double deadline_s = 60;  // well below the time limit of the test
  comm::Communicator world_;
  std::unique_ptr<test::TemporaryDirectory> directory_;  // rank 0
  std::string path_;
};

}  // namespace motley::train
