// Laws 4 and 5 against real processes: killed ones and stopped ones.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "core/files.h"
#include "support/background_job.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

class Faults : public ::testing::Test {
 protected:
  Faults() {
    fs::create_directory(data);
    test::write_learnable_images(data / "train.h5", 900, 1);
  }
  std::vector<std::string> arguments(const std::string& run, const std::string& steps,
                                     const std::string& timeout) const {
    return {"train",
            "--data",
            data.string(),
            "--save-dir",
            (directory.path() / run).string(),
            "--global-batch",
            "30",
            "--policy",
            "static",
            "--weights",
            "2,1,3",
            "--max-update",
            steps,
            "--save-interval-updates",
            "4",
            "--keep-interval-updates",
            "3",
            "--log-interval",
            "1",
            "--timeout",
            timeout};
  }

  std::unique_ptr<test::BackgroundJob> start(std::vector<std::string> words) const {
    const fs::path notes = directory.path() / "notes";
    words.insert(words.begin(), test::motley_program());
    return std::make_unique<test::BackgroundJob>(
        notes, test::mpirun_command(ranks, test::BackgroundJob::noting(notes, words)));
  }

  std::size_t metric_lines(const std::string& run) const {
    return test::lines_of(directory.path() / run / "metrics.jsonl");
  }

  // Waits until every rank of this start runs and metrics.jsonl has more than `count` lines. False when that
  // does not come about, also when the run is over before: what is to be killed must be alive.
  bool wait_for_more_lines_than(const test::BackgroundJob& job, const std::string& run,
                                std::size_t count) const {
    return test::wait_until([&] { return job.all_run(ranks) && metric_lines(run) > count; });
  }

  static constexpr int ranks = 3;
  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data";
};

TEST_F(Faults, law4_killed_at_any_moment_it_continues_to_the_same_bits) {
  const std::string steps = "160";
  ASSERT_EQ(test::run_motley(ranks, arguments("whole", steps, "60")).job.exit_code, 0);
  // A rank or mpirun itself, after so many steps beyond those that an earlier start left.
  const std::size_t kill_after[] = {2, 10, 15, 19};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t lines_before = metric_lines("killed");
    const auto job = start(arguments("killed", steps, "60"));
    ASSERT_TRUE(wait_for_more_lines_than(*job, "killed", lines_before + kill_after[i])) << job->log();
    const pid_t victim = i % 2 == 0 ? job->rank(static_cast<int>(i) % ranks) : job->mpirun();
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    EXPECT_NE(job->exit_code(60), 0);
    ASSERT_LT(metric_lines("killed"), 160u) << "the run was over before it was killed";
    // When mpirun is killed its ranks notice and end by themselves; the next start must not meet them.
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = job->rank(rank);
      for (int tries = 0; tries < 500 && ::kill(pid, 0) == 0; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      ::kill(pid, SIGKILL);
    }
  }
  const test::MpiRun last = test::run_motley(ranks, arguments("killed", steps, "60"));
  ASSERT_EQ(last.job.exit_code, 0) << last.job.err;
  EXPECT_NE(last.job.err.find("continuing from"), std::string::npos);
  const auto model = [&](const char* run) {
    return read_file(directory.path() / run / "latest" / "model.safetensors", ExitCode::input);
  };
  EXPECT_EQ(model("whole"), model("killed"));
  EXPECT_EQ(metric_lines("killed"), metric_lines("whole")) << "steps that were done twice must appear once";
}

TEST_F(Faults, law5_any_rank_that_stops_is_named_and_ends_the_run_within_the_deadline) {
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  for (int victim = 0; victim < ranks; ++victim) {
    // Far more steps than are done before the stop.
    const std::string run = "stopped" + std::to_string(victim);
    const auto job = start(arguments(run, "100000", "3"));
    ASSERT_TRUE(wait_for_more_lines_than(*job, run, 4)) << job->log();
    const auto start_time = std::chrono::steady_clock::now();
    ASSERT_EQ(::kill(job->rank(victim), SIGSTOP), 0);
    const int code = job->exit_code(30);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
    ::kill(job->rank(victim), SIGKILL);
    EXPECT_EQ(code, 5);
    EXPECT_LT(seconds, 3 + 10);
    const std::string log = job->log(), name = "rank " + std::to_string(victim) + " (host " + host + ", ";
    // Rank 0 says what the others have told it; when it is itself the one, they say so by their own clocks.
    const std::string sentence = victim == 0 ? "error: rank [12] [^\n]* waited 3 s for [^\n]*; "
                                             : "error: nothing has moved for 3[.][0-9] s: ";
    EXPECT_TRUE(std::regex_search(
        log, std::regex(sentence + R"(rank [0-9] \(host [^()]+\) has not been heard of for )")))
        << log;
    EXPECT_NE(log.find(name), std::string::npos) << log;
    if (victim != 0) {
      EXPECT_TRUE(std::regex_search(log, std::regex("was last seen [a-z ]+ in step [0-9]+, for [0-9.]+ s")))
          << log;
    }
    for (int other = 0; other < ranks; ++other) {
      if (other != victim && other != 0) {
        EXPECT_EQ(log.find("rank " + std::to_string(other) + " (host " + host + ", "), std::string::npos)
            << log;
      }
    }
  }
}

// Each step takes longer than the deadline, and is on its way all the time.
TEST_F(Faults, law5_a_rank_that_computes_for_long_is_waited_for) {
  std::vector<std::string> words = arguments("slow", "2", "2");
  words.insert(words.end(), {"--slow", "1:+6s"});
  const test::MpiRun run = test::run_motley(ranks, words);
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
}

// Batch norm's sums are in the middle of a pass, dozens of them in each step.
TEST_F(Faults, law5_a_rank_that_stops_in_a_run_with_batch_norm_ends_it_within_the_deadline) {
  const std::string set = (directory.path() / "synth" / "train.h5").string();
  fs::create_directory(directory.path() / "synth");
  ASSERT_EQ(test::run_motley(
                1, {"data", "synth", "--samples", "60", "--height", "16", "--width", "16", "--out", set})
                .job.exit_code,
            0);
  std::vector<std::string> words = arguments("norm", "100000", "3");
  words[2] = (directory.path() / "synth").string();
  words.insert(words.end(), {"--task", "images", "--arch", "shufflenetv2_0.5", "--lr", "0.001"});
  const auto job = start(words);
  ASSERT_TRUE(wait_for_more_lines_than(*job, "norm", 4)) << job->log();
  ASSERT_EQ(::kill(job->rank(2), SIGSTOP), 0);
  const int code = job->exit_code(30);
  ::kill(job->rank(2), SIGKILL);
  EXPECT_EQ(code, 5);
  const std::string log = job->log();
  const std::regex sentence(
      R"(error: nothing has moved for 3[.][0-9] s: rank 2 \(host [^()]+\) has not been heard of for )");
  EXPECT_TRUE(std::regex_search(log, sentence)) << log;
}

}  // namespace
}  // namespace motley
