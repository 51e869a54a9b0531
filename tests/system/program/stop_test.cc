// Runs that are asked to stop: by signals, by the clock, by the end of a batch job. They save, end with code 75 on every rank,
// and the same command goes on as if nothing had been.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "support/background_job.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class Stopping : public ::testing::Test {
 protected:
  Stopping() {
    fs::create_directory(data);
    test::write_learnable_images(data / "train.h5", 900, 1);
  }

  Words arguments(const std::string& run, const Words& more = {}) const {
    Words words = {
        "train",          "--data",   data.string(), "--save-dir",     (directory.path() / run).string(),
        "--global-batch", "30",       "--policy",    "static",         "--weights",
        "2,1,3",          "--window", "4",           "--log-interval", "1",
        "--timeout",      "60"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Each rank leaves its code.
  std::unique_ptr<test::BackgroundJob> start(Words words,
                                             const test::BackgroundJob::Environment& environment = {}) const {
    // mpirun hears of the first only when all have come to their end: it would kill the others.
    const std::string note =
        "trap '' TERM; dir=$1; shift; \"$@\" & child=$!; echo $child > $dir/new.$OMPI_COMM_WORLD_RANK; "
        "mv $dir/new.$OMPI_COMM_WORLD_RANK $dir/$OMPI_COMM_WORLD_RANK; wait $child; code=$?; "
        "echo $code > $dir/newcode.$OMPI_COMM_WORLD_RANK; "
        "mv $dir/newcode.$OMPI_COMM_WORLD_RANK $dir/code.$OMPI_COMM_WORLD_RANK; tries=0; "
        "until set -- $dir/code.*; [ $# -ge $OMPI_COMM_WORLD_SIZE ] || [ $tries -ge 400 ]; do "
        "sleep 0.05; tries=$((tries + 1)); done; exit $code";
    Words all = {"sh", "-c", note, "sh", notes.string(), test::motley_program()};
    all.insert(all.end(), words.begin(), words.end());
    return std::make_unique<test::BackgroundJob>(notes, test::mpirun_command(ranks, all), environment);
  }

  // Of the job that has ended; -1 where mpirun ended the rank's shell.
  std::vector<int> codes() const {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      std::ifstream file(notes / ("code." + std::to_string(rank)));
      int code = -1;
      file >> code;
      all.push_back(code);
    }
    return all;
  }

  std::size_t metric_lines(const std::string& run) const {
    return test::lines_of(directory.path() / run / "metrics.jsonl");
  }
  bool wait_for_more_lines_than(const test::BackgroundJob& job, const std::string& run,
                                std::size_t count) const {
    return test::wait_until([&] { return job.all_run(ranks) && metric_lines(run) > count; });
  }
  std::string model(const std::string& run) const {
    return read_file(directory.path() / run / "latest" / "model.safetensors", ExitCode::input);
  }
  // Lines about validations, without their times.
  std::vector<Json> validations(const std::string& run) const {
    std::ifstream file(directory.path() / run / "metrics.jsonl");
    std::vector<Json> lines;
    for (std::string text; std::getline(file, text);) {
      Json line = Json::parse(text);
      if (!line.contains("valid")) continue;
      line.erase("seconds");
      lines.push_back(line);
    }
    return lines;
  }
  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  static constexpr int ranks = 3;
  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data", notes = directory.path() / "notes";
};

TEST_F(Stopping, each_signal_to_any_rank_saves_and_the_run_continues_to_the_same_bits) {
  const Words steps = {"--max-update", "200"};
  ASSERT_EQ(test::run_motley(ranks, arguments("whole", steps)).job.exit_code, 0);
  const struct {
    int signal;
    const char* name;
    int rank;
  } cases[] = {
      {SIGTERM, "SIGTERM", 1}, {SIGINT, "SIGINT", 0}, {SIGUSR1, "SIGUSR1", 2}, {SIGUSR2, "SIGUSR2", 0}};
  for (const auto& [signal, name, rank] : cases) {
    const auto job = start(arguments("stopped", steps));
    ASSERT_TRUE(wait_for_more_lines_than(*job, "stopped", metric_lines("stopped") + 3)) << job->log();
    ASSERT_EQ(::kill(job->rank(rank), signal), 0);
    EXPECT_EQ(job->exit_code(60), 75) << job->log();
    EXPECT_EQ(codes(), std::vector<int>(ranks, 75)) << name;
    EXPECT_NE(job->log().find(std::string(name) + " on rank " + std::to_string(rank)), std::string::npos)
        << job->log();
    EXPECT_EQ(job->log().find("error"), std::string::npos) << job->log();
    ASSERT_LT(metric_lines("stopped"), 200u) << "the run was over before it was stopped";
  }
  ASSERT_EQ(test::run_motley(ranks, arguments("stopped", steps)).job.exit_code, 0);
  EXPECT_EQ(model("stopped"), model("whole"));
  EXPECT_EQ(metric_lines("stopped"), metric_lines("whole"));
}

TEST_F(Stopping, local_steps_are_brought_together_first) {
  const Words steps = {"--max-update", "100000", "--local-steps", "5"};
  const auto job = start(arguments("local", steps));
  ASSERT_TRUE(wait_for_more_lines_than(*job, "local", 3)) << job->log();
  ASSERT_EQ(::kill(job->rank(1), SIGTERM), 0);
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  EXPECT_EQ(codes(), std::vector<int>(ranks, 75));
  const std::string newest = fs::read_symlink(directory.path() / "local" / "latest").filename();
  EXPECT_EQ(std::stoll(newest.substr(5)) % 5, 0) << newest;
}

// A run that is stopped while it judges its model owes that to the next start.
TEST_F(Stopping, a_validation_that_was_interrupted_is_done_by_the_continuation) {
  test::write_learnable_images(data / "valid.h5", 600, 2);
  const auto words = [&](const std::string& run, const Words& more) {
    Words all = {"--max-epoch", "2", "--save-interval-updates", "20"};
    all.insert(all.end(), more.begin(), more.end());
    return arguments(run, all);
  };
  ASSERT_EQ(test::run_motley(ranks, words("whole", {})).job.exit_code, 0);
  ASSERT_EQ(validations("whole").size(), 4u) << "steps 20, 30, 40 and 60";
  // From step 20 on a batch takes half a second, also when it is judged: 20 of them.
  const auto job = start(words("stopped", {"--slow", "2:+500ms@20-20"}));
  ASSERT_TRUE(wait_for_more_lines_than(*job, "stopped", 19)) << job->log();
  std::this_thread::sleep_for(std::chrono::seconds(3));
  EXPECT_TRUE(validations("stopped").empty()) << "it must not be done yet";
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(job->rank(2), SIGUSR1), 0);
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  EXPECT_LT(seconds_since(begin), 6) << "the rest of the validation alone takes 7 s";
  EXPECT_EQ(fs::read_symlink(directory.path() / "stopped" / "latest").filename(), "step-00000020");
  ASSERT_EQ(test::run_motley(ranks, words("stopped", {})).job.exit_code, 0);
  EXPECT_EQ(validations("stopped"), validations("whole"));
  EXPECT_EQ(model("stopped"), model("whole"));
}

TEST_F(Stopping, it_stops_after_the_time_that_it_was_given) {
  const auto begin = std::chrono::steady_clock::now();
  const auto job = start(
      arguments("time", {"--max-update", "1000000", "--stop-after", "2s", "--checkpoint-deadline", "10s"}));
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  EXPECT_GE(seconds_since(begin), 2);
  EXPECT_LT(seconds_since(begin), 12);
  EXPECT_EQ(codes(), std::vector<int>(ranks, 75));
  EXPECT_NE(job->log().find("the time being up"), std::string::npos) << job->log();
  EXPECT_TRUE(fs::exists(directory.path() / "time" / "latest" / "MANIFEST.json"));
}

TEST_F(Stopping, it_stops_before_the_batch_system_ends_the_job) {
  const std::time_t end = std::time(nullptr) + 14;
  const auto job = start(arguments("slurm", {"--max-update", "1000000", "--checkpoint-deadline", "10s"}),
                         {{"SLURM_JOB_END_TIME", std::to_string(end)}});
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  EXPECT_LT(std::time(nullptr), end);
  EXPECT_TRUE(fs::exists(directory.path() / "slurm" / "latest" / "MANIFEST.json"));
}

TEST_F(Stopping, a_second_interrupt_ends_at_once) {
  // A step takes a minute.
  Words words = arguments("twice", {"--max-update", "100", "--slow", "0:+60s@3-100"});
  words.insert(words.begin(), test::motley_program());
  const auto job = std::make_unique<test::BackgroundJob>(
      notes, test::mpirun_command(ranks, test::BackgroundJob::noting(notes, words)));
  ASSERT_TRUE(wait_for_more_lines_than(*job, "twice", 1)) << job->log();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(job->rank(0), SIGINT), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQ(::kill(job->rank(0), 0), 0) << "the first one waits for the step";
  ASSERT_EQ(::kill(job->rank(0), SIGINT), 0);
  EXPECT_NE(job->exit_code(30), 0);
  EXPECT_LT(seconds_since(begin), 20);
}

TEST_F(Stopping, without_checkpoints_it_says_that_nothing_was_saved) {
  const auto job = start(arguments("none", {"--max-update", "1000000", "--no-save"}));
  ASSERT_TRUE(wait_for_more_lines_than(*job, "none", 3)) << job->log();
  ASSERT_EQ(::kill(job->rank(1), SIGTERM), 0);
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  EXPECT_NE(job->log().find("nothing was saved (--no-save)"), std::string::npos) << job->log();
}

TEST_F(Stopping, times_that_are_none_are_refused) {
  for (const Words& wrong :
       {Words{"--stop-after", "1.5h"}, Words{"--stop-after", "0"}, Words{"--checkpoint-deadline", "soon"}}) {
    Words words = arguments("refused", {"--max-update", "1"});
    words.insert(words.end(), wrong.begin(), wrong.end());
    const test::MpiRun refused = test::run_motley(ranks, words);
    EXPECT_EQ(refused.exit_codes, std::vector<int>(ranks, 2)) << wrong[0];
    EXPECT_NE(refused.job.err.find(wrong[0] + " is \"" + wrong[1] + "\"; expected a time above 0"),
              std::string::npos)
        << refused.job.err;
  }
  EXPECT_FALSE(fs::exists(directory.path() / "refused"));
}

}  // namespace
}  // namespace motley
