// Laws 1, 3 and 4 of the design on colour images that are cropped and mirrored at random, with the recipe of CIFAR-10 at a
// rate that does not amplify rounding by itself with small batches (docs/laws.md). Runs under mpirun with 4 ranks, which
// are split into worlds of 1, 3 and 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "io/synthetic_images.h"
#include "support/expect_warnings.h"
#include "system/laws/worlds.h"

namespace motley::train {
namespace {

constexpr std::uint64_t samples = 360;

class ImageLaws : public Worlds {
 protected:
  ImageLaws() {
    if (world_.rank() == 0) io::write_synthetic_images({.samples = samples, .seed = 17}, path_ + "/train.h5");
    world_.barrier("the data");
  }

  TrainOptions options(const std::string& run, std::int64_t batch, std::int64_t steps) const {
    TrainOptions result;
    result.data.task = "cifar10";
    result.image.arch = "lenet";
    result.data.data = path_;
    result.save.save_dir = path_ + "/" + run;
    result.save.save_interval = 0;
    result.batch.global_batch = batch;
    result.batch.max_sentences = 8;
    result.batch.policy = "sync";
    result.batch.window = 4;
    result.schedule.lr = {0.02};
    result.max_update = steps;
    fill_in(result, [](const std::string& name) { return name == "global-batch" || name == "lr"; });
    result.schedule.unit = "epoch";
    result.schedule.epochs = 12;
    result.report.log_format = "none";
    result.threads = 1;
    result.seed = 3;
    result.bucket_cap_mb = 0.05;  // several buckets
    return result;
  }
};

TEST_F(ImageLaws, law1_losses_do_not_depend_on_ranks_or_shares_with_augmentation_on) {
  constexpr std::int64_t steps = 50, batch = 40;
  const Trace one = train(1, options("one", batch, steps));
  const Trace four = train(4, options("four", batch, steps));
  const Trace three = train(3, with_weights(options("unequal", batch, steps), "1,2,5"));
  TrainOptions plain = options("plain", batch, steps);
  plain.image.crop_padding = 0;
  plain.image.flip = false;
  const Trace as_they_are = train(1, plain);
  if (world_.rank() != 0) return;
  for (const Trace* trace : {&one, &four, &three})
    ASSERT_EQ(trace->losses.size(), static_cast<std::size_t>(steps));
  ASSERT_EQ(as_they_are.losses.size(), static_cast<std::size_t>(steps));
  EXPECT_GT(std::abs(as_they_are.losses.back() / one.losses.back() - 1), 1e-2)
      << "nothing was cropped or mirrored";
  EXPECT_LT(one.losses.back(), 0.97 * one.losses.front()) << "it must have learned something";
  expect_same(one, four, 1e-4, 1e-5, "4 ranks");
  expect_same(one, three, 1e-4, 1e-5, "shares 1:2:5");
}

// At rate 0, with all samples in every batch and in one order, crops and mirroring alone decide the loss.
TEST_F(ImageLaws, law3_crops_depend_on_the_step_and_not_on_what_was_drawn_before) {
  const auto crops_only = [&](const std::string& run, std::int64_t steps) {
    TrainOptions result = options(run, static_cast<std::int64_t>(samples), steps);
    result.schedule.lr = {0};
    result.data.curriculum = 100;
    return result;
  };
  const Trace whole = train(1, crops_only("crops", 5));
  train(1, crops_only("past", 3));
  TrainOptions late = crops_only("late", 5);
  late.save.restore_file = path_ + "/past/latest";
  late.batch.window = 1;
  const Trace continued = train(1, late);
  if (world_.rank() != 0) return;
  ASSERT_EQ(whole.losses.size(), 5u);
  ASSERT_EQ(continued.losses.size(), 2u);
  EXPECT_EQ(continued.losses[0], whole.losses[3]);
  EXPECT_EQ(continued.losses[1], whole.losses[4]);
  for (std::size_t i = 1; i < 5; ++i)
    EXPECT_NE(whole.losses[i], whole.losses[i - 1]) << "every step has crops of its own; step " << i + 1;
}

TEST_F(ImageLaws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t batch = 40, steps = 24;  // 9 steps an epoch
  for (const std::int64_t stop : {1, 9, 14}) {
    const std::string name = std::to_string(stop);
    const TrainOptions whole = with_weights(options("whole" + name, batch, steps), "3,1,2");
    TrainOptions first = whole;
    first.save.save_dir = path_ + "/parts" + name;
    first.max_update = stop;
    TrainOptions second = first;
    second.max_update = steps;
    const Trace uninterrupted = train(3, whole);
    const Trace before = train(3, first);
    const Trace after = train(3, second);
    if (world_.rank() < 3) expect_continued(uninterrupted, before, after, steps, stop, name);
    if (!all_well()) return;
  }
}

// Networks with batch norm. ReLU amplifies rounding: a value that falls on the other side of zero changes a gradient of
// this size by 1e-3 (docs/laws.md), so where runs are compared the network has swish instead.
class BatchNormLaws : public ImageLaws {
 protected:
  BatchNormLaws() {
    if (world_.rank() == 0)
      io::write_synthetic_images({.samples = samples, .height = 24, .width = 24, .seed = 17},
                                 path_ + "/train.h5");
    world_.barrier("smaller images");
  }
  TrainOptions options(const std::string& run, std::int64_t batch, std::int64_t steps,
                       const char* arch = "shufflenetv2_0.5") const {
    TrainOptions result = ImageLaws::options(run, batch, steps);
    result.data.task = "images";
    result.image.arch = arch;
    return result;
  }
  TrainOptions smooth(const std::string& run, std::int64_t steps) const {
    TrainOptions result = options(run, 40, steps, "efficientnet_b0");
    result.schedule.lr = {5e-4};
    return result;
  }
  static TrainOptions by_micro_batch(TrainOptions result) {
    result.image.sync_bn = false;
    return result;
  }

  // Losses, gradients and running statistics, on rank 0; `other` may be the shorter run.
  void expect_same(const Trace& one, const Trace& other, std::size_t steps, const std::string& what) const {
    if (world_.rank() != 0) return;
    ASSERT_EQ(other.losses.size(), steps) << what;
    ASSERT_GE(one.losses.size(), steps) << what;
    Trace beginning;
    beginning.losses.assign(one.losses.begin(), one.losses.begin() + static_cast<std::ptrdiff_t>(steps));
    const double worst = expect_same_losses(beginning, other, 1e-4, what);
    const double gradient = relative_distance(other.first_gradient, one.first_gradient);
    EXPECT_LT(gradient, 1e-5) << what;
    std::printf("%s: largest relative difference of a loss %.1e, of the first gradient %.1e", what.c_str(),
                worst, gradient);
    if (one.losses.size() == steps) {
      const double running = relative_distance(other.statistics, one.statistics);
      EXPECT_LT(running, 1e-4) << what;
      std::printf(", of running statistics %.1e", running);
    }
    std::printf("\n");
  }
};

TEST_F(BatchNormLaws, law1_statistics_are_those_of_the_global_batch_whatever_the_ranks_and_shares) {
  constexpr std::int64_t steps = 50, fewer = 16;
  const Trace one = train(1, smooth("one", steps));
  expect_same(one, train(4, smooth("four", steps)), steps, "4 ranks");
  expect_same(one, train(3, with_weights(smooth("unequal", steps), "1,2,5")), steps, "shares 1:2:5");
  expect_same(one, train(4, with_weights(smooth("zeros", fewer), "0,3,1,0")), fewer, "shares 0:3:1:0");
  TrainOptions measured = smooth("moving", fewer);
  measured.batch.policy = "auto";
  measured.slow = "1:6x";
  const Trace moving = train(3, measured);
  expect_same(one, moving, fewer, "moving shares");
  const Trace apart = train(3, by_micro_batch(with_weights(smooth("apart", 1), "1,2,5")));
  if (world_.rank() != 0) return;
  EXPECT_TRUE(std::any_of(moving.shares.begin(), moving.shares.end(), [&](const auto& shares) {
    return shares != moving.shares.front();
  })) << "they did not move";
  EXPECT_LT(one.losses.back(), 0.97 * one.losses.front()) << "it must have learned something";
  EXPECT_GT(relative_distance(apart.first_gradient, one.first_gradient), 1e-2)
      << "statistics of micro-batches are others";
}

// Rounding to 8 bits in each of 80 layers, whose batch norms it passes through, is a tenth of the gradient.
TEST_F(BatchNormLaws, law1_holds_in_bfloat16_to_its_precision) {
  constexpr std::int64_t steps = 20;
  const auto in_bfloat16 = [&](const std::string& run) {
    TrainOptions result = smooth(run, steps);
    result.model.precision = "bf16";
    return result;
  };
  const Trace exact = train(1, smooth("exact", steps)), one = train(1, in_bfloat16("one"));
  const auto compare = [&](const Trace& wanted, const Trace& trace, double gradients,
                           const std::string& what) {
    Worlds::expect_same(wanted, trace, 2e-2, gradients, what);
    if (world_.rank() == 0) {
      EXPECT_LT(relative_distance(trace.statistics, wanted.statistics), 2e-2) << what;
    }
  };
  compare(exact, one, 0.25, "bfloat16 against float32");
  compare(one, train(2, in_bfloat16("two")), 0.15, "bfloat16, 2 ranks");
  compare(one, train(4, with_weights(in_bfloat16("unequal"), "1,2,0,5")), 0.15, "bfloat16, shares 1:2:0:5");
  TrainOptions by_share = by_micro_batch(with_weights(in_bfloat16("apart"), "1,2,5"));
  by_share.max_update = 1;
  const Trace apart = train(3, by_share);
  if (world_.rank() != 0) return;
  EXPECT_NE(exact.losses, one.losses);
  EXPECT_GT(relative_distance(apart.first_gradient, one.first_gradient), 0.5)
      << "statistics of micro-batches are others";
}

TEST_F(BatchNormLaws, law4_a_stopped_and_continued_run_is_the_run_that_was_never_stopped) {
  constexpr std::int64_t batch = 24, steps = 6, stop = 4;
  struct Case {
    bool sync;
    const char* precision;
  };
  for (const auto& [sync, precision] : {Case{true, "fp32"}, {false, "fp32"}, {true, "bf16"}}) {
    const std::string name = std::string(sync ? "sync" : "apart") + precision;
    TrainOptions whole = with_weights(options(name, batch, steps), "3,1,2");
    whole.image.sync_bn = sync;
    whole.model.precision = precision;
    // Running statistics come together whenever a checkpoint is due.
    whole.save.save_interval_updates = stop;
    TrainOptions first = whole;
    first.save.save_dir = path_ + "/parts" + name;
    first.max_update = stop;
    TrainOptions second = first;
    second.max_update = steps;
    const Trace uninterrupted = train(3, whole);
    const Trace before = train(3, first);
    const Trace after = train(3, second);
    if (world_.rank() < 3) expect_continued(uninterrupted, before, after, steps, stop, name);
    if (!all_well()) return;
  }
}

// Without --sync-bn: what is saved is the mean of what the ranks had, weighted by their samples.
TEST_F(BatchNormLaws, running_statistics_of_micro_batches_are_combined_by_samples) {
  constexpr std::int64_t batch = 24, steps = 5;
  TrainOptions apart = by_micro_batch(with_weights(options("combined", batch, steps), "3,1,0,2"));
  apart.batch.max_sentences = 5;
  const Trace trace = train(4, apart);
  EXPECT_EQ(trace.micro_batches.front(),
            (std::vector<std::int64_t>{3, 1, 0, 2})[static_cast<std::size_t>(world_.rank())]);
  const auto own_samples =
      static_cast<double>(std::accumulate(trace.shares.begin(), trace.shares.end(), std::int64_t{0}));
  std::vector<double> expected;
  for (const float value : trace.last_statistics)
    expected.push_back(own_samples * static_cast<double>(value));
  expected.push_back(own_samples);
  world_.all_reduce_sum(expected, "the mean");
  ASSERT_EQ(expected.back(), static_cast<double>(batch * steps));
  ASSERT_EQ(trace.statistics.size() + 1, expected.size());
  double difference = 0, moved = 0;
  for (std::size_t i = 0; i < trace.statistics.size(); ++i) {
    const double value = trace.statistics[i], mean = expected[i] / expected.back();
    difference = std::max(difference, std::abs(value - mean) / std::max(1.0, std::abs(mean)));
    moved = std::max(moved, std::abs(value - static_cast<double>(trace.last_statistics[i])));
  }
  EXPECT_LT(difference, 1e-6);
  EXPECT_GT(moved, 1e-4) << "the ranks had the same statistics";
}

// A rank that runs out of memory in mid-step does its share again; its running statistics have then moved once.
TEST_F(BatchNormLaws, running_statistics_move_once_where_memory_ends_in_mid_step) {
  constexpr std::int64_t batch = 24, steps = 3;
  TrainOptions first = by_micro_batch(options("parts", batch, 1));
  first.batch.max_sentences = 12;
  TrainOptions second = first;
  second.max_update = steps;
  second.batch.max_sentences = 6;
  TrainOptions whole = first;
  whole.save.save_dir = path_ + "/whole";
  whole.max_update = steps;
  train(1, first);
  const Trace as_planned = train(1, second);
  Trace surprised;
  const auto run = [&] {
    surprised = train(1, whole, [](const StepResult& result, Trainer& trainer) {
      if (result.step != 1) return;
      // The next pass finds all working memory but the last byte of the largest piece.
      const std::size_t needed = trainer.backend().allocated_bytes();
      trainer.backend().release_scratch();
      ASSERT_LT(trainer.backend().allocated_bytes(), needed);
      trainer.backend().set_memory_limit(needed - 1);
    });
  };
  if (world_.rank() == 0) {
    test::expect_warnings(1, run);
  } else {
    run();
  }
  if (world_.rank() != 0) return;
  EXPECT_EQ(surprised.micro_batches, (std::vector<std::int64_t>{2, 4, 4}));
  ASSERT_EQ(surprised.losses.size(), 3u);
  EXPECT_EQ(std::vector<double>(surprised.losses.begin() + 1, surprised.losses.end()), as_planned.losses);
  EXPECT_TRUE(same_bits(surprised.parameters, as_planned.parameters));
}

// Where a share has to be run at once, memory limits it, with the working memory that a pass turns out to take.
TEST_F(BatchNormLaws, law1_holds_where_memory_limits_shares) {
  constexpr std::int64_t steps = 3;
  double bytes[] = {0};
  const Trace one = train(1, smooth("all", steps), [&](const StepResult&, Trainer& trainer) {
    bytes[0] = static_cast<double>(trainer.backend().allocated_bytes());
  });
  world_.all_reduce_max(bytes, "the memory of one rank");
  TrainOptions limited = smooth("limited", steps);
  limited.memory_limit = "1:" + std::to_string(static_cast<std::int64_t>(0.4 * bytes[0]));
  Trace three;
  const auto run = [&] { three = train(3, limited); };
  if (world_.rank() == 0) {
    const std::string said = test::expect_warnings(1, run);
    EXPECT_NE(said.find("a share is run at once"), std::string::npos) << said;
  } else {
    run();
  }
  expect_same(one, three, steps, "shares limited by memory");
  if (world_.rank() != 1) return;
  EXPECT_LT(three.shares.front(), 13);
  EXPECT_EQ(three.micro_batches.front(), 1);
}

}  // namespace
}  // namespace motley::train
