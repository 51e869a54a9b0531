// Continuing, going back, and what must not be lost or mixed up on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

class Continuing : public ::testing::Test {
 protected:
  Continuing() {
    fs::create_directory(data);
    test::write_learnable_images(data / "train.h5", 200, 1);
    test::write_learnable_images(data / "valid.h5", 50, 2);
  }

  test::MpiRun train(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"train", "--data", data.string(), "--save-dir", run.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(2, arguments);
  }

  nlohmann::json trainer_json(const fs::path& checkpoint) const {
    return nlohmann::json::parse(read_file(checkpoint / "trainer.json", ExitCode::input));
  }

  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data";
  fs::path run = directory.path() / "run";
};

TEST_F(Continuing, config_ini_repeats_a_run_whose_batch_follows_from_the_ranks) {
  ASSERT_EQ(train({"--max-update", "2", "--max-sentences", "8", "--update-freq", "2"}).job.exit_code, 0);
  const std::string config = (run / "config.ini").string();
  const test::MpiRun again =
      test::run_motley(2, {"train", "--config", config, "--save-dir", (directory.path() / "again").string()});
  ASSERT_EQ(again.job.exit_code, 0) << again.job.err;
  EXPECT_EQ(read_file(run / "latest" / "model.safetensors", ExitCode::input),
            read_file(directory.path() / "again" / "latest" / "model.safetensors", ExitCode::input));
}

TEST_F(Continuing, the_best_of_the_last_validation_is_kept) {
  ASSERT_EQ(train({"--max-epoch", "1", "--global-batch", "50", "--validate-interval", "2"}).job.exit_code, 0);
  EXPECT_EQ(fs::canonical(run / "best"), fs::canonical(run / "latest"));
  EXPECT_EQ(trainer_json(run / "latest")["best"]["step"], 4);
}

TEST_F(Continuing, a_best_by_another_metric_does_not_count) {
  ASSERT_EQ(train({"--max-epoch", "1", "--global-batch", "50"}).job.exit_code, 0);
  const test::MpiRun second = train({"--max-epoch", "2", "--global-batch", "50", "--best-checkpoint-metric",
                                     "accuracy", "--maximize-best-checkpoint-metric"});
  ASSERT_EQ(second.job.exit_code, 0) << second.job.err;
  const nlohmann::json best = trainer_json(run / "latest")["best"];
  EXPECT_EQ(best["metric"], "accuracy");
  EXPECT_LE(best["value"].get<double>(), 1.0) << "the loss of the first run was kept as an accuracy";
}

TEST_F(Continuing, going_back_sets_newer_checkpoints_aside) {
  ASSERT_EQ(
      train({"--max-update", "6", "--global-batch", "50", "--save-interval-updates", "2"}).job.exit_code, 0);
  const test::MpiRun back =
      train({"--max-update", "5", "--global-batch", "50", "--restore-file", "step-00000002"});
  ASSERT_EQ(back.job.exit_code, 0) << back.job.err;
  EXPECT_EQ(fs::read_symlink(run / "latest").filename(), "step-00000005");
  EXPECT_TRUE(fs::exists(run / "superseded-step-00000006"));
  EXPECT_FALSE(fs::exists(run / "step-00000006"));
}

TEST_F(Continuing, a_run_without_checkpoints_does_not_touch_another_runs_metrics) {
  ASSERT_EQ(train({"--max-update", "3", "--global-batch", "50", "--log-interval", "1"}).job.exit_code, 0);
  const std::string before = read_file(run / "metrics.jsonl", ExitCode::input);
  const test::MpiRun refused = train({"--max-update", "5", "--global-batch", "50", "--no-save"});
  EXPECT_EQ(refused.job.exit_code, 2);
  EXPECT_NE(refused.job.err.find("another --save-dir"), std::string::npos) << refused.job.err;
  EXPECT_EQ(read_file(run / "metrics.jsonl", ExitCode::input), before);
}

TEST_F(Continuing, changes_that_matter_are_said) {
  ASSERT_EQ(train({"--max-update", "2", "--max-sentences", "8"}).job.exit_code, 0);
  const test::MpiRun optimizer = train({"--max-update", "4", "--max-sentences", "8", "--optimizer", "adam"});
  EXPECT_EQ(optimizer.job.exit_code, 4);
  EXPECT_NE(optimizer.job.err.find("--optimizer adadelta; this run's is adam"), std::string::npos)
      << optimizer.job.err;
  std::vector<std::string> arguments = {"train",      "--data",          data.string(),
                                        "--save-dir", run.string(),      "--max-update",
                                        "4",          "--max-sentences", "8"};
  const test::MpiRun ranks = test::run_motley(1, arguments);
  EXPECT_EQ(ranks.job.exit_code, 2) << ranks.job.err;
  EXPECT_NE(ranks.job.err.find("the global batch was 16, is 8"), std::string::npos) << ranks.job.err;
  EXPECT_NE(ranks.job.err.find("--allow-changed-options"), std::string::npos) << ranks.job.err;
  EXPECT_EQ(fs::read_symlink(run / "latest").filename(), "step-00000002");
  arguments.emplace_back("--allow-changed-options");
  const test::MpiRun allowed = test::run_motley(1, arguments);
  EXPECT_EQ(allowed.job.exit_code, 0) << allowed.job.err;
  EXPECT_NE(allowed.job.err.find("the global batch was 16, is 8"), std::string::npos) << allowed.job.err;
  EXPECT_EQ(fs::read_symlink(run / "latest").filename(), "step-00000004");
}

TEST_F(Continuing, all_changes_of_the_mathematics_are_listed) {
  ASSERT_EQ(train({"--max-update", "2", "--global-batch", "20"}).job.exit_code, 0);
  const test::MpiRun changed = train({"--max-update", "4", "--global-batch", "40", "--seed", "7", "--lr",
                                      "0.5", "--warmup-updates", "3", "--flip"});
  EXPECT_EQ(changed.exit_codes, (std::vector<int>{2, 2}));
  for (const char* change : {"the global batch was 20, is 40", "--seed was 19940802, is 7",
                             "--lr was 0.25, is 0.5", "--warmup-updates was 0, is 3", "--flip was "})
    EXPECT_NE(changed.job.err.find(change), std::string::npos) << change << "\n" << changed.job.err;
  EXPECT_EQ(fs::read_symlink(run / "latest").filename(), "step-00000002");
}

TEST_F(Continuing, a_bad_checkpoint_is_set_aside_and_the_one_before_it_used) {
  const std::vector<std::string> two = {
      "--max-update", "4", "--global-batch", "50", "--save-interval-updates", "2"};
  ASSERT_EQ(train(two).job.exit_code, 0);
  fs::resize_file(run / "step-00000004" / "optimizer.h5", 100);
  const test::MpiRun again = train(two);
  EXPECT_EQ(again.job.exit_code, 0) << again.job.err;
  EXPECT_NE(again.job.err.find("step-00000004/optimizer.h5 has 100 bytes"), std::string::npos)
      << again.job.err;
  EXPECT_NE(again.job.err.find("continuing from " + (run / "step-00000002").string()), std::string::npos)
      << again.job.err;
  EXPECT_EQ(fs::file_size(run / "bad-step-00000004" / "optimizer.h5"), 100u);
  EXPECT_EQ(fs::read_symlink(run / "latest").filename(), "step-00000004");
}

TEST_F(Continuing, where_none_is_good_it_starts_over_only_when_told) {
  std::vector<std::string> words = {
      "--max-update", "4", "--global-batch", "50", "--save-interval-updates", "2"};
  ASSERT_EQ(train(words).job.exit_code, 0);
  for (const char* step : {"step-00000002", "step-00000004"}) fs::remove(run / step / "trainer.json");
  for (int tries = 0; tries < 2; ++tries) {
    const test::MpiRun refused = train(words);
    EXPECT_EQ(refused.exit_codes, (std::vector<int>{4, 4}));
    EXPECT_NE(refused.job.err.find("--restart-from-scratch"), std::string::npos) << refused.job.err;
    EXPECT_TRUE(fs::exists(run / "step-00000004")) << "nothing is touched";
  }
  words.emplace_back("--restart-from-scratch");
  const test::MpiRun over = train(words);
  EXPECT_EQ(over.job.exit_code, 0) << over.job.err;
  EXPECT_TRUE(fs::exists(run / "bad-step-00000002"));
  EXPECT_TRUE(fs::exists(run / "bad-step-00000004"));
  EXPECT_EQ(trainer_json(run / "latest")["step"], 4);
  // With those set aside alone a start would begin anew as silently.
  for (const char* step : {"step-00000002", "step-00000004"}) fs::remove_all(run / step);
  words.pop_back();
  EXPECT_EQ(train(words).exit_codes, (std::vector<int>{4, 4}));
}

TEST_F(Continuing, numbers_that_are_not_finite_end_the_run_and_leave_what_was_good) {
  ASSERT_EQ(train({"--max-update", "2", "--global-batch", "50", "--optimizer", "sgd", "--lr", "0.01"})
                .job.exit_code,
            0);
  const test::MpiRun wild =
      train({"--max-update", "9", "--global-batch", "50", "--optimizer", "sgd", "--lr", "1e30", "--clip-norm",
             "0", "--log-interval", "50", "--allow-changed-options"});
  EXPECT_EQ(wild.job.exit_code, 70);
  EXPECT_NE(wild.job.err.find("not a finite number"), std::string::npos) << wild.job.err;
  EXPECT_EQ(fs::read_symlink(run / "latest").filename(), "step-00000002");
}

// Law 1 across restarts: ranks, shares, memory and threads may be others each time.
TEST_F(Continuing, on_other_ranks_it_is_the_same_run) {
  const auto part = [&](int ranks, const char* save_dir, const char* steps, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"train", "--data", data.string(), "--save-dir", (directory.path() / save_dir).string(),
                                          "--global-batch", "40", "--lr", "1", "--warmup-updates", "1000", "--log-interval",
                                          "1", "--max-sentences", "8", "--max-update", steps, "--validate-interval", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const test::MpiRun done = test::run_motley(ranks, arguments);
    EXPECT_EQ(done.job.exit_code, 0) << done.job.err;
  };
  part(1, "one", "30", {});
  part(4, "elastic", "11", {"--policy", "sync"});
  part(2, "elastic", "19", {"--policy", "static", "--weights", "1,4", "--memory-limit", "1:300M"});
  part(7, "elastic", "30", {"--policy", "static", "--weights", "3,0,1,2,2,1,1"});
  const auto losses = [&](const char* save_dir) {
    std::vector<double> all;
    std::ifstream file(directory.path() / save_dir / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line)["loss"].get<double>());
    return all;
  };
  const std::vector<double> one = losses("one"), elastic = losses("elastic");
  ASSERT_EQ(one.size(), 30u);
  ASSERT_EQ(elastic.size(), 30u);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(elastic[i], one[i], 1e-4 * one[i]) << "step " << i + 1;
}

TEST_F(Continuing, a_deadline_in_a_file_counts) {
  write_file(directory.path() / "c.ini", "timeout = 0\n", ExitCode::input);
  const test::MpiRun refused =
      train({"--max-update", "1", "--config", (directory.path() / "c.ini").string()});
  EXPECT_EQ(refused.job.exit_code, 2);
  EXPECT_NE(refused.job.err.find("--timeout is 0"), std::string::npos) << refused.job.err;
}

TEST_F(Continuing, options_out_of_bounds_are_refused) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--update-freq", "()"},
                                             {"--threads", "100000"},
                                             {"--max-epoch", "4294967296"},
                                             {"--max-sentences", "4611686018427387904"}}) {
    std::vector<std::string> arguments = {"--max-update", "1"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const test::MpiRun refused = train(arguments);
    EXPECT_EQ(refused.job.exit_code, 2) << wrong[0] << "\n" << refused.job.err;
    EXPECT_NE(refused.job.err.find(wrong[0]), std::string::npos) << refused.job.err;
  }
  EXPECT_FALSE(fs::exists(run));
}

}  // namespace
}  // namespace motley
