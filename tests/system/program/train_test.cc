// The program as a person uses it: data, training, checkpoints, evaluation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "support/metrics.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Lines {
  std::vector<Json> train, valid;
};

Lines read_metrics(const fs::path& run) {
  Lines lines;
  for (const Json& json : test::metrics_of(run)) {
    (json.contains("valid") || json.contains("subset") ? lines.valid : lines.train).push_back(json);
  }
  return lines;
}

class Program : public ::testing::Test {
 protected:
  Program() {
    fs::create_directory(data);
    test::write_learnable_images(data / "train.h5", 1200, 1);
    test::write_learnable_images(data / "test.h5", 300, 2);
  }

  std::vector<std::string> train_arguments(const std::string& name,
                                           const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "train", "--task", "mnist", "--data", data.string(), "--save-dir", (directory.path() / name).string(),
        "--lr",  "1.0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data";
};

TEST_F(Program, trains_on_unequal_ranks_until_it_knows_the_classes) {
  const test::MpiRun run = test::run_motley(
      4, train_arguments("run",
                         {"--valid-subset", "test", "--max-epoch", "2", "--global-batch", "32", "--policy",
                          "static", "--weights", "3,1,3,3", "--slow", "1:3x", "--log-interval", "10",
                          "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"}));
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const fs::path saved = directory.path() / "run";
  const Lines lines = read_metrics(saved);
  ASSERT_EQ(lines.train.size(), 9u);  // 76 steps: every 10th, and before the checkpoints of 38 and 76
  EXPECT_EQ(lines.train.front()["step"], 10);
  EXPECT_EQ(lines.train.back()["step"], 76);
  EXPECT_EQ(lines.train.back()["epoch"], 2);
  EXPECT_LT(lines.train.back()["loss"].get<double>(), lines.train.front()["loss"].get<double>());
  const Json& ranks = lines.train.front()["ranks"];
  ASSERT_EQ(ranks.size(), 4u);
  EXPECT_EQ(ranks[0]["n"].get<int>() + ranks[1]["n"].get<int>() + ranks[2]["n"].get<int>() +
                ranks[3]["n"].get<int>(),
            32);
  EXPECT_EQ(ranks[1]["n"], 3);
  for (const Json& rank : ranks) {
    EXPECT_GT(rank["compute_s"].get<double>(), 0);
    EXPECT_GT(rank["wait_s"].get<double>(), 0) << "even the slowest waits for the sum of the gradients";
    // No time is counted twice; step_s is rank 0's, and other ranks' steps begin at moments of their own.
    EXPECT_LT(rank["compute_s"].get<double>() + rank["wait_s"].get<double>(),
              1.5 * lines.train.front()["step_s"].get<double>());
  }
  ASSERT_EQ(lines.valid.size(), 2u);
  EXPECT_GT(lines.valid.back()["accuracy"].get<double>(), 0.9)
      << "ten blocks of brightness are easy to tell apart";
  EXPECT_TRUE(fs::exists(saved / "config.ini"));
  EXPECT_TRUE(fs::exists(saved / "latest" / "MANIFEST.json"));
  EXPECT_TRUE(fs::exists(saved / "best" / "model.safetensors"));
  EXPECT_NE(run.job.err.find("samples/s"), std::string::npos) << "the summary is missing:\n" << run.job.err;

  const test::MpiRun judged = test::run_motley(3, {"eval", "--data", data.string(), "--valid-subset", "test",
                                                   "--save-dir", saved.string(), "--log-format", "json"});
  ASSERT_EQ(judged.job.exit_code, 0) << judged.job.err;
  const Json result = Json::parse(judged.job.out);
  EXPECT_EQ(result["samples"], 300);
  EXPECT_NEAR(result["loss"].get<double>(), lines.valid.back()["loss"].get<double>(), 1e-5);
  EXPECT_EQ(result["accuracy"], lines.valid.back()["accuracy"]);

  // Started again it is complete, and says so without training.
  const test::MpiRun again =
      test::run_motley(2, train_arguments("run", {"--max-epoch", "2", "--global-batch", "32"}));
  EXPECT_EQ(again.job.exit_code, 0);
  EXPECT_NE(again.job.err.find("nothing is left to do"), std::string::npos) << again.job.err;
}

TEST_F(Program, one_rank_waits_for_nobody) {
  const test::MpiRun run = test::run_motley(
      1, train_arguments("alone", {"--max-update", "3", "--global-batch", "32", "--log-interval", "1",
                                   "--no-save", "--validate-interval", "0"}));
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Lines lines = read_metrics(directory.path() / "alone");
  ASSERT_EQ(lines.train.size(), 3u);
  for (const Json& line : lines.train) {
    const double wait_s = line["ranks"][0]["wait_s"].get<double>();
    EXPECT_GE(wait_s, 0);
    EXPECT_LT(wait_s, 0.5 * line["step_s"].get<double>());
  }
}

TEST_F(Program, a_slow_rank_is_slower_by_its_factor_and_the_note_says_what_to_change) {
  const test::MpiRun run = test::run_motley(
      2, train_arguments("slow", {"--max-update", "40", "--global-batch", "32", "--slow", "1:3x",
                                  "--log-interval", "40", "--no-save", "--policy", "sync"}));
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Json ranks = read_metrics(directory.path() / "slow").train.at(0)["ranks"];
  const double ratio = ranks[1]["compute_s"].get<double>() / ranks[0]["compute_s"].get<double>();
  EXPECT_GT(ratio, 2) << "three times slower, on a busy machine";
  EXPECT_LT(ratio, 5);
  EXPECT_GT(ranks[0]["wait_s"].get<double>(), ranks[0]["compute_s"].get<double>());
  EXPECT_NE(run.job.err.find("NOTE"), std::string::npos) << run.job.err;
  EXPECT_NE(run.job.err.find("--weights"), std::string::npos) << run.job.err;
  EXPECT_FALSE(fs::exists(directory.path() / "slow" / "latest"));
}

TEST_F(Program, without_a_policy_a_slow_rank_is_given_less) {
  const test::MpiRun run = test::run_motley(
      3, train_arguments("auto", {"--max-update", "80", "--global-batch", "96", "--slow", "1:6x",
                                  "--log-interval", "10", "--save-interval-updates", "80"}));
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Lines lines = read_metrics(directory.path() / "auto");
  const Json first = lines.train.front()["ranks"], last = lines.train.back()["ranks"];
  EXPECT_GT(first[1]["sleep_s"].get<double>(), 0);
  EXPECT_EQ(first[0]["sleep_s"].get<double>(), 0);
  EXPECT_GE(first[0]["read_s"].get<double>(), 0);
  EXPECT_GT(first[0]["micro_batch_s"].get<double>(), 0);
  EXPECT_LT(last[1]["n"].get<double>(), 32) << "a sixth of the speed of the others";
  EXPECT_NEAR(last[0]["n"].get<double>() + last[1]["n"].get<double>() + last[2]["n"].get<double>(), 96, 1e-9);
  // Judged by the same shares, on as many ranks.
  const test::MpiRun judged =
      test::run_motley(3, {"eval", "--data", data.string(), "--valid-subset", "test", "--save-dir",
                           (directory.path() / "auto").string(), "--log-format", "json"});
  ASSERT_EQ(judged.job.exit_code, 0) << judged.job.err;
  EXPECT_EQ(Json::parse(judged.job.out)["samples"], 300);
}

TEST_F(Program, local_steps_are_reported_where_ranks_come_together) {
  const std::vector<std::string> arguments =
      train_arguments("local", {"--max-update", "25", "--global-batch", "32", "--local-steps", "4",
                                "--log-interval", "10", "--policy", "static", "--weights", "1,2",
                                "--optimizer", "sgd", "--save-interval-updates", "15"});
  const test::MpiRun run = test::run_motley(2, arguments);
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  std::vector<int> steps;
  for (const Json& line : read_metrics(directory.path() / "local").train) {
    steps.push_back(line["step"]);
    EXPECT_GT(line["loss"].get<double>(), 0);
  }
  // Every tenth step, or the next one that ends a round; and before checkpoints.
  EXPECT_EQ(steps, (std::vector<int>{12, 15, 20, 25}));
}

TEST_F(Program, a_rank_whose_memory_runs_out_in_mid_run_goes_on_with_less_at_a_time) {
  const std::vector<std::string> more = {"--max-update", "20",   "--global-batch", "64",
                                         "--policy",     "sync", "--no-save"};
  const test::MpiRun enough = test::run_motley(2, train_arguments("enough", more));
  ASSERT_EQ(enough.job.exit_code, 0) << enough.job.err;
  std::vector<std::string> little = more;
  little.insert(little.end(), {"--memory-limit", "1:22M@10"});
  const test::MpiRun less = test::run_motley(2, train_arguments("less", little));
  ASSERT_EQ(less.job.exit_code, 0) << less.job.err;
  EXPECT_NE(less.job.err.find("[rank 1] warning"), std::string::npos) << less.job.err;
  const Json a = read_metrics(directory.path() / "enough").train.back(),
             b = read_metrics(directory.path() / "less").train.back();
  EXPECT_NEAR(a["loss"].get<double>(), b["loss"].get<double>(), 1e-5 * a["loss"].get<double>());
  EXPECT_EQ(a["ranks"][1]["micro_batches"], 1.0);
  EXPECT_GT(b["ranks"][1]["micro_batches"].get<double>(), 1.0);
}

TEST_F(Program, keeps_the_checkpoints_it_is_told_to_keep) {
  const test::MpiRun run = test::run_motley(
      2, train_arguments("kept", {"--max-epoch", "3", "--global-batch", "100", "--save-interval-updates", "5",
                                  "--keep-interval-updates", "2", "--keep-last-epochs", "1"}));
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory.path() / "kept")) {
    if (entry.is_directory() && !entry.is_symlink()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  // 36 steps: intervals at 5, 10, ... 35; epochs at 12, 24, 36.
  EXPECT_EQ(names, (std::vector<std::string>{"step-00000030", "step-00000035", "step-00000036"}));
  EXPECT_EQ(fs::read_symlink(directory.path() / "kept" / "latest").filename(), "step-00000036");
}

TEST_F(Program, config_ini_repeats_the_run) {
  const std::vector<std::string> first =
      train_arguments("a", {"--max-update", "6", "--global-batch", "17", "--policy", "static", "--weights",
                            "2,1", "--log-interval", "1", "--optimizer", "sgd", "--nesterov"});
  ASSERT_EQ(test::run_motley(2, first).job.exit_code, 0);
  const test::MpiRun second =
      test::run_motley(2, {"train", "--config", (directory.path() / "a" / "config.ini").string(),
                           "--save-dir", (directory.path() / "b").string()});
  ASSERT_EQ(second.job.exit_code, 0) << second.job.err;
  const Lines a = read_metrics(directory.path() / "a"), b = read_metrics(directory.path() / "b");
  ASSERT_EQ(a.train.size(), 6u);
  ASSERT_EQ(b.train.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(a.train[i]["loss"], b.train[i]["loss"]);
}

TEST_F(Program, update_freq_sets_the_batch_of_each_epoch) {
  const test::MpiRun run = test::run_motley(
      2, train_arguments("freq", {"--max-epoch", "2", "--max-sentences", "10", "--update-freq", "5,2",
                                  "--policy", "sync", "--log-interval", "1"}));
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Lines lines = read_metrics(directory.path() / "freq");
  // Epoch 1: 1200 / (10 x 5 x 2) = 12 steps; epoch 2: 1200 / (10 x 2 x 2) = 30.
  ASSERT_EQ(lines.train.size(), 42u);
  EXPECT_EQ(lines.train[0]["ranks"][0]["n"], 50);
  EXPECT_EQ(lines.train[12]["ranks"][0]["n"], 20);
  for (const char* words : {"epoch 1/2  step 12/42  ", "epoch 2/2  step 42/42  "}) {
    EXPECT_NE(run.job.out.find(words), std::string::npos) << run.job.out;
  }
}

TEST_F(Program, help_and_version_need_no_mpi) {
  const test::Finished help = test::run_program({test::motley_program(), "train", "--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("--global-batch"), std::string::npos);
  const test::Finished overview = test::run_program({test::motley_program(), "--help"});
  EXPECT_EQ(overview.exit_code, 0);
  for (const char* command : {"train", "eval", "data idx", "data inspect"}) {
    EXPECT_NE(overview.out.find(command), std::string::npos);
  }
  EXPECT_EQ(test::run_program({test::motley_program(), "--version"}).exit_code, 0);
}

TEST_F(Program, inspect_says_what_a_file_holds) {
  const test::Finished run =
      test::run_program({test::motley_program(), "data", "inspect", (data / "test.h5").string()});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* word : {"images", "labels", "300", "28", "uint8"})
    EXPECT_NE(run.out.find(word), std::string::npos) << run.out;
}

}  // namespace
}  // namespace motley
