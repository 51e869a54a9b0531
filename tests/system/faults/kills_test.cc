// Law 4 by chance: kill -9 of a random rank, or of mpirun, at random moments of one run that is started again each time. In the
// end its parameters are those of a run that was never killed, bit for bit. MOTLEY_TEST_KILLS says how many (20 by itself).
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
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

class Kills : public ::testing::Test {
 protected:
  Kills() {
    fs::create_directory(data);
    test::write_learnable_images(data / "train.h5", 900, 1);
    test::write_learnable_images(data / "valid.h5", 60, 2);
  }

  // A checkpoint every other step, which takes longer than the steps between.
  std::vector<std::string> arguments(const std::string& run, std::size_t steps) const {
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
            "--optimizer",
            "adam",
            "--lr",
            "0.001",
            "--max-update",
            std::to_string(steps),
            "--save-interval-updates",
            "2",
            "--keep-interval-updates",
            "2",
            "--log-interval",
            "1",
            "--timeout",
            "60"};
  }
  fs::path metrics(const std::string& run) const { return directory.path() / run / "metrics.jsonl"; }

  // When mpirun is killed its ranks notice and end by themselves; the next start must not meet them.
  void end_of_all(const test::BackgroundJob& job) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = job.rank(rank);
      if (pid <= 0) continue;
      for (int tries = 0; tries < 500 && ::kill(pid, 0) == 0; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ::kill(pid, SIGKILL);
    }
  }

  bool has_half_a_checkpoint(const std::string& run) const {
    if (!fs::exists(directory.path() / run)) return false;
    for (const auto& entry : fs::directory_iterator(directory.path() / run))
      if (entry.path().filename().string().starts_with(".tmp-step-")) return true;
    return false;
  }

  static constexpr int ranks = 3;
  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data", notes = directory.path() / "notes";
};

TEST_F(Kills, at_random_moments_cost_nothing) {
  const char* const wanted = std::getenv("MOTLEY_TEST_KILLS");
  const std::size_t kills = wanted != nullptr ? std::stoul(wanted) : 20;
  // Lines: one for each step, and for the validation that comes with every other.
  const std::size_t steps = 6 * kills;
  const test::MpiRun whole = test::run_motley(ranks, arguments("whole", steps), 600);
  ASSERT_EQ(whole.job.exit_code, 0) << whole.job.err;

  std::mt19937_64 random(20261201);
  const auto below = [&](int end) { return std::uniform_int_distribution<int>(0, end - 1)(random); };
  std::size_t in_checkpoints = 0;
  for (std::size_t done = 0; done < kills; ++done) {
    SCOPED_TRACE(done);
    std::vector<std::string> words = arguments("killed", steps);
    words.insert(words.begin(), test::motley_program());
    test::BackgroundJob job(notes, test::mpirun_command(ranks, test::BackgroundJob::noting(notes, words)));
    // Each life does a part of the run, and none the last steps.
    const std::size_t lines = 8 * done + static_cast<std::size_t>(below(8));
    ASSERT_TRUE(test::wait_until([&] {
      return job.all_run(ranks) && test::lines_of(metrics("killed")) >= lines;
    })) << job.log();
    std::this_thread::sleep_for(std::chrono::milliseconds(below(60)));
    const int victim = below(ranks + 1);
    ::kill(victim == ranks ? job.mpirun() : job.rank(victim), SIGKILL);
    ASSERT_NE(job.exit_code(100), 0) << "the run was over before it was killed\n" << job.log();
    end_of_all(job);
    if (has_half_a_checkpoint("killed")) ++in_checkpoints;
  }
  const test::MpiRun last = test::run_motley(ranks, arguments("killed", steps), 600);
  ASSERT_EQ(last.job.exit_code, 0) << last.job.err;
  const auto model = [&](const char* run) {
    return read_file(directory.path() / run / "latest" / "model.safetensors", ExitCode::input);
  };
  EXPECT_EQ(model("killed"), model("whole"));
  EXPECT_EQ(test::lines_of(metrics("killed")), test::lines_of(metrics("whole")));
  EXPECT_FALSE(has_half_a_checkpoint("killed")) << "leftovers are removed by the next start";
  std::printf("%zu of %zu kills left half a checkpoint\n", in_checkpoints, kills);
  EXPECT_GE(in_checkpoints, kills / 10);
}

}  // namespace
}  // namespace motley
