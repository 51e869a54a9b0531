// Steps that are not finite numbers, and ranks whose parameters have gone their own way. Runs under mpirun with 4 ranks. A
// number in the parameters of one rank is spoilt after some step, as a broken card would, and mended after a later one.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/permutation.h"
#include "system/laws/image_worlds.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

class BadNumbers : public ImageWorlds {
 protected:
  static constexpr int spoilt_rank = 2;
  static constexpr float nan = std::numeric_limits<float>::quiet_NaN();

  // On one rank, from after step `from` to after step `to`.
  Meddle spoil(std::int64_t from, std::int64_t to, float with = nan, int rank = spoilt_rank) {
    return [=, this](const StepResult& result, Trainer& trainer) {
      if (world_.rank() != rank) return;
      auto* const number = const_cast<float*>(trainer.parameters().values().as<float>()) + spoilt_element;
      if (result.step == from) {
        kept_ = *number;
        *number = with;
      }
      if (result.step == to) *number = kept_;
    };
  }

  std::vector<Json> skipped(const std::string& run) const {
    std::ifstream file(path_ + "/" + run + "/skipped.jsonl");
    std::vector<Json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }

  std::string newest(const std::string& run) const {
    std::error_code none;
    return fs::read_symlink(path_ + "/" + run + "/latest", none).filename().string();
  }

  // The sentence that the run ends with.
  std::string failure_of(const TrainOptions& options, const Meddle& meddle, ExitCode code) {
    std::string sentence;
    try {
      train(4, options, meddle);
    } catch (const AgreedError& error) {
      sentence = error.what();
      EXPECT_EQ(error.code(), code) << sentence;
    }
    world_.barrier("the failure");
    return sentence;
  }

  static constexpr std::size_t spoilt_element = 5;
  float kept_ = 0;
};

TEST_F(BadNumbers, a_step_is_skipped_by_all_ranks_and_told_with_its_samples) {
  constexpr std::int64_t batch = 40;
  std::vector<std::vector<float>> parameters;
  const Meddle poison = spoil(3, 5);
  const Trace trace =
      train(4, image_options("skip", batch, 8), [&](const StepResult& result, Trainer& trainer) {
        poison(result, trainer);
        parameters.push_back(on_host(trainer.backend(), trainer.parameters().values()));
      });
  if (world_.rank() != spoilt_rank) {
    EXPECT_TRUE(same_bits(parameters[2], parameters[4]));
  }
  EXPECT_FALSE(same_bits(parameters[4], parameters[5]));
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_EQ(std::isfinite(trace.losses[i]), i != 3 && i != 4) << "step " << i + 1;
  // All ranks are together again.
  std::vector<double> last(parameters[7].begin(), parameters[7].end()), largest = last;
  world_.all_reduce_max(largest, "the parameters");
  EXPECT_EQ(largest, last);

  if (world_.rank() != 0) return;
  const std::vector<Json> lines = skipped("skip");
  ASSERT_EQ(lines.size(), 2u);
  const KeyedPermutation order(samples, 3, 1);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto step = static_cast<std::uint64_t>(4 + i);
    EXPECT_EQ(lines[i]["step"], step);
    EXPECT_EQ(lines[i]["epoch"], 1);
    EXPECT_TRUE(lines[i]["loss"].is_null());
    std::set<std::uint64_t> told, expected;
    for (const Json& rank : lines[i]["ranks"]) {
      EXPECT_EQ(rank["finite"], rank["rank"] != spoilt_rank) << lines[i];
      for (const Json& sample : rank["samples"]) told.insert(sample.get<std::uint64_t>());
    }
    for (std::uint64_t slot = 0; slot < batch; ++slot) expected.insert(order((step - 1) * batch + slot));
    EXPECT_EQ(told, expected);
  }
}

TEST_F(BadNumbers, too_many_in_a_row_end_the_run_and_leave_the_checkpoint_before_them) {
  TrainOptions options = image_options("many", 40, 20);
  options.guard.max_skips = 3;
  options.save.save_interval_updates = 2;
  const std::string sentence = failure_of(options, spoil(3, 100), ExitCode::internal);
  EXPECT_NE(sentence.find("step 6: 3 step(s) in a row"), std::string::npos) << sentence;
  if (world_.rank() != 0) return;
  EXPECT_EQ(newest("many"), "step-00000002");
  EXPECT_EQ(skipped("many").size(), 3u);
}

TEST_F(BadNumbers, those_that_are_not_in_a_row_do_not_end_it) {
  TrainOptions options = image_options("apart", 40, 12);
  options.guard.max_skips = 3;
  const Meddle first = spoil(2, 4), second = spoil(5, 7), third = spoil(8, 10);
  train(4, options, [&](const StepResult& result, Trainer& trainer) {
    first(result, trainer);
    second(result, trainer);
    third(result, trainer);
  });
  if (world_.rank() != 0) return;
  EXPECT_EQ(skipped("apart").size(), 6u);
}

// Law 4: the number of skipped steps, which Adam's corrections depend on, is in the checkpoint.
TEST_F(BadNumbers, a_run_with_skipped_steps_continues_to_the_same_bits) {
  const auto adam = [&](const std::string& run, std::int64_t steps) {
    TrainOptions options = image_options(run, 40, steps);
    options.optimizer.name = "adam";
    options.schedule.lr = {1e-3};
    return options;
  };
  constexpr std::int64_t steps = 9, stop = 5;
  const Meddle poison = spoil(1, 3);
  const Trace whole = train(4, adam("whole", steps), poison);
  const Trace before = train(4, adam("parts", stop), poison);
  const Trace after = train(4, adam("parts", steps));
  expect_continued(whole, before, after, steps, stop, "Adam with 2 skipped steps");
}

TEST_F(BadNumbers, running_statistics_of_batch_norm_stay_finite) {
  for (const bool sync : {true, false}) {
    TrainOptions options = image_options(sync ? "sync" : "no-sync", 16, 5);
    options.data.task = "images";
    options.image.arch = "resnet8";
    options.image.classes = 10;
    options.image.sync_bn = sync;
    options.batch.max_sentences = 16;
    options.schedule.lr = {0.01};
    options.optimizer.name = "sgd";
    const Trace trace = train(4, options, spoil(2, 3));
    EXPECT_TRUE(std::isnan(trace.losses.at(2)));
    EXPECT_TRUE(std::isfinite(trace.losses.at(4)));
    ASSERT_FALSE(trace.statistics.empty());
    for (const float statistic : trace.statistics)
      ASSERT_TRUE(std::isfinite(statistic)) << "sync-bn " << sync;
  }
}

TEST_F(BadNumbers, local_steps_leave_out_those_that_one_rank_skipped) {
  TrainOptions options = image_options("local", 40, 8);
  options.batch.local_steps = 4;
  options.optimizer.name = "sgd";
  options.schedule.lr = {0.01};
  options.optimizer.momentum = 0;
  const Trace trace = train(4, options, spoil(1, 2));
  for (const float parameter : trace.parameters) ASSERT_TRUE(std::isfinite(parameter));
  if (world_.rank() != 0) return;
  const std::vector<Json> lines = skipped("local");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["step"], 4);
  for (const Json& rank : lines[0]["ranks"]) {
    EXPECT_EQ(rank["finite"], rank["rank"] != spoilt_rank);
    EXPECT_EQ(rank["samples"].size(), rank["rank"] == spoilt_rank ? 10u : 0u);
  }
}

TEST_F(BadNumbers, the_rank_whose_parameters_differ_is_named) {
  TrainOptions options = image_options("drift", 40, 20);
  options.guard.verify_every = 5;
  // Far below what a loss would show.
  const std::string sentence = failure_of(options, spoil(3, 100, 1e-30F, 1), ExitCode::device);
  EXPECT_NE(sentence.find("step 5: the parameters on rank 1 (host "), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("rank 0"), std::string::npos) << sentence;
}

TEST_F(BadNumbers, no_checkpoint_is_written_of_parameters_that_differ) {
  TrainOptions options = image_options("drift-save", 40, 20);
  options.save.save_interval_updates = 2;
  const std::string sentence = failure_of(options, spoil(3, 100, 1e-30F, 0), ExitCode::device);
  EXPECT_NE(sentence.find("step 4: the parameters on rank 0 (host "), std::string::npos) << sentence;
  if (world_.rank() != 0) return;
  EXPECT_EQ(newest("drift-save"), "step-00000002");
}

}  // namespace
}  // namespace motley::train
