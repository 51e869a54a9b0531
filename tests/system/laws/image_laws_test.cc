// Laws 1, 3 and 4 of the design on colour images that are cropped and mirrored at random, with the recipe of CIFAR-10 at a
// rate that does not amplify rounding by itself with small batches (docs/laws.md). Runs under mpirun with 4 ranks, which
// are split into worlds of 1, 3 and 4.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "io/synthetic_images.h"
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
  plain.image = {};
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

TEST_F(ImageLaws, law4_holds_for_the_running_statistics_of_batch_norm) {
  constexpr std::int64_t batch = 24, steps = 6, stop = 4;
  TrainOptions whole = options("batch_norm", batch, steps);
  whole.image.arch = "shufflenetv2_0.5";
  whole.batch.max_sentences = batch;
  TrainOptions first = whole;
  first.save.save_dir = path_ + "/batch_norm_parts";
  first.max_update = stop;
  TrainOptions second = first;
  second.max_update = steps;
  const Trace uninterrupted = train(1, whole);
  const Trace before = train(1, first);
  const Trace after = train(1, second);
  if (world_.rank() == 0) expect_continued(uninterrupted, before, after, steps, stop, "batch norm");
}

}  // namespace
}  // namespace motley::train
