// Laws 4 and 5 against real processes: killed ones and stopped ones.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/files.h"
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

  std::vector<std::string> arguments(const std::string& run, const std::string& timeout) const {
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
            "60",
            "--save-interval-updates",
            "4",
            "--keep-interval-updates",
            "3",
            "--log-interval",
            "1",
            "--timeout",
            timeout};
  }

  // Starts mpirun in a process group of its own; every rank leaves its process id in `pids`.
  pid_t start(const std::vector<std::string>& motley_arguments) {
    std::vector<std::string> words = {"sh",
                                      "-c",
                                      "dir=$1; shift; echo $$ > $dir/$OMPI_COMM_WORLD_RANK; exec \"$@\"",
                                      "sh",
                                      directory.path().string(),
                                      test::motley_program()};
    words.insert(words.end(), motley_arguments.begin(), motley_arguments.end());
    words = test::mpirun_command(3, words);
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setpgid(0, 0);
    if (std::freopen((directory.path() / "log").c_str(), "w", stderr) == nullptr) ::_exit(127);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(127);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }

  pid_t pid_of_rank(int rank) const {
    std::ifstream file(directory.path() / std::to_string(rank));
    pid_t pid = 0;
    file >> pid;
    return pid;
  }

  std::size_t metric_lines(const std::string& run) const {
    std::ifstream file(directory.path() / run / "metrics.jsonl");
    std::size_t lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }

  void wait_for_lines(const std::string& run, std::size_t count) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (metric_lines(run) < count && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  // Waits for mpirun to end; -1 when it does not within the time (it is then killed).
  static int exit_code_of(pid_t child, double timeout_s) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        ::kill(-child, SIGKILL);
        ::waitpid(child, &status, 0);
        return -1;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data";
};

TEST_F(Faults, law4_killed_at_any_moment_it_continues_to_the_same_bits) {
  ASSERT_EQ(test::run_motley(3, arguments("whole", "60")).job.exit_code, 0);
  // A rank or mpirun itself, at moments that the number of steps done decides.
  const std::size_t kill_after[] = {3, 14, 29, 47};
  for (std::size_t i = 0; i < 4; ++i) {
    const pid_t job = start(arguments("killed", "60"));
    wait_for_lines("killed", kill_after[i]);
    const pid_t victim = i % 2 == 0 ? pid_of_rank(static_cast<int>(i) % 3) : job;
    ASSERT_GT(victim, 0);
    ::kill(victim, SIGKILL);
    EXPECT_NE(exit_code_of(job, 60), 0);
    // When mpirun is killed its ranks notice and end by themselves; the next start must not meet them.
    for (int rank = 0; rank < 3; ++rank) {
      const pid_t pid = pid_of_rank(rank);
      for (int tries = 0; tries < 500 && ::kill(pid, 0) == 0; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      ::kill(pid, SIGKILL);
    }
  }
  const test::MpiRun last = test::run_motley(3, arguments("killed", "60"));
  ASSERT_EQ(last.job.exit_code, 0) << last.job.err;
  EXPECT_NE(last.job.err.find("continuing from"), std::string::npos);
  const auto model = [&](const char* run) {
    return read_file(directory.path() / run / "latest" / "model.safetensors", ExitCode::input);
  };
  EXPECT_EQ(model("whole"), model("killed"));
  EXPECT_EQ(metric_lines("killed"), metric_lines("whole")) << "steps that were done twice must appear once";
}

TEST_F(Faults, law5_a_rank_that_stops_ends_the_run_within_the_deadline) {
  const pid_t job = start(arguments("stopped", "3"));
  wait_for_lines("stopped", 5);
  const pid_t victim = pid_of_rank(2);
  ASSERT_GT(victim, 0);
  const auto start_time = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  const int code = exit_code_of(job, 30);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
  ::kill(victim, SIGKILL);
  EXPECT_EQ(code, 5);
  EXPECT_LT(seconds, 13);
  const std::string log = read_file(directory.path() / "log", ExitCode::input);
  EXPECT_NE(log.find("waited"), std::string::npos) << log;
}

}  // namespace
}  // namespace motley
