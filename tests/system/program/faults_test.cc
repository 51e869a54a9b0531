// Laws 4 and 5 against real processes: killed ones and stopped ones.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <thread>
#include <vector>

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
  // Ranks without an mpirun end by themselves.
  ~Faults() override {
    if (running_ > 0) exit_code_of(running_, 0);
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

  // Starts mpirun in a process group of its own; every rank leaves its process id in a file (pid_of_rank).
  pid_t start(const std::vector<std::string>& motley_arguments) {
    // Those of an earlier start name processes that are gone, whose ids may be somebody else's by now.
    for (int rank = 0; rank < ranks; ++rank) fs::remove(directory.path() / std::to_string(rank));
    std::vector<std::string> words = {
        "sh",
        "-c",
        "dir=$1; shift; echo $$ > $dir/new.$OMPI_COMM_WORLD_RANK; "
        "mv $dir/new.$OMPI_COMM_WORLD_RANK $dir/$OMPI_COMM_WORLD_RANK; exec \"$@\"",
        "sh",
        directory.path().string(),
        test::motley_program()};
    words.insert(words.end(), motley_arguments.begin(), motley_arguments.end());
    words = test::mpirun_command(ranks, words);
    const pid_t child = ::fork();
    if (child != 0) return running_ = child;
    ::setpgid(0, 0);
    if (std::freopen((directory.path() / "log").c_str(), "w", stderr) == nullptr) ::_exit(127);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(127);
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }

  // 0 before the rank has started.
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

  // Waits until every rank of this start runs and metrics.jsonl has more than `count` lines. False when that
  // does not come about, also when the run is over before: what is to be killed must be alive.
  bool wait_for_more_lines_than(const std::string& run, std::size_t count) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      bool all_run = true;
      for (int rank = 0; rank < ranks; ++rank) {
        const pid_t pid = pid_of_rank(rank);
        all_run = all_run && pid > 0 && ::kill(pid, 0) == 0;
      }
      if (all_run && metric_lines(run) > count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  // Waits for mpirun to end; -1 when it does not within the time (it is then killed).
  int exit_code_of(pid_t child, double timeout_s) {
    running_ = 0;
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

  static constexpr int ranks = 3;
  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data";

 private:
  pid_t running_ = 0;  // the mpirun that nobody has waited for
};

TEST_F(Faults, law4_killed_at_any_moment_it_continues_to_the_same_bits) {
  const std::string steps = "160";
  ASSERT_EQ(test::run_motley(ranks, arguments("whole", steps, "60")).job.exit_code, 0);
  // A rank or mpirun itself, after so many steps beyond those that an earlier start left.
  const std::size_t kill_after[] = {2, 10, 15, 19};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::size_t lines_before = metric_lines("killed");
    const pid_t job = start(arguments("killed", steps, "60"));
    ASSERT_TRUE(wait_for_more_lines_than("killed", lines_before + kill_after[i]))
        << read_file(directory.path() / "log", ExitCode::input);
    const pid_t victim = i % 2 == 0 ? pid_of_rank(static_cast<int>(i) % ranks) : job;
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    EXPECT_NE(exit_code_of(job, 60), 0);
    ASSERT_LT(metric_lines("killed"), 160u) << "the run was over before it was killed";
    // When mpirun is killed its ranks notice and end by themselves; the next start must not meet them.
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = pid_of_rank(rank);
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

TEST_F(Faults, law5_a_rank_that_stops_ends_the_run_within_the_deadline) {
  // Far more steps than are done before the stop.
  const pid_t job = start(arguments("stopped", "100000", "3"));
  ASSERT_TRUE(wait_for_more_lines_than("stopped", 4)) << read_file(directory.path() / "log", ExitCode::input);
  const pid_t victim = pid_of_rank(2);
  const auto start_time = std::chrono::steady_clock::now();
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  const int code = exit_code_of(job, 30);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_time).count();
  ::kill(victim, SIGKILL);
  EXPECT_EQ(code, 5);
  EXPECT_LT(seconds, 13);
  const std::string log = read_file(directory.path() / "log", ExitCode::input);
  // A sum over all ranks does not know who is missing; the plan and other messages of one rank to another do.
  const std::regex sentence(R"(motley: (\[rank [01]\] )?error: rank [01] \(host [^ ()]+\) waited 3 s for )"
                            "(gradient bucket [0-9]+ of [0-9]+|the [a-z][^\n]+)");
  EXPECT_TRUE(std::regex_search(log, sentence)) << log;
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof host - 1), 0);
  EXPECT_NE(log.find(std::string("(host ") + host + ")"), std::string::npos) << log;
}

}  // namespace
}  // namespace motley
