#include "support/background_job.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace motley::test {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

BackgroundJob::BackgroundJob(const std::filesystem::path& directory, const std::vector<std::string>& words,
                             const Environment& environment)
    : directory_(directory) {
  // Those of an earlier job name processes that are gone, whose ids may be somebody else's by now.
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  mpirun_ = ::fork();
  if (mpirun_ < 0) throw std::runtime_error("fork failed");
  if (mpirun_ > 0) return;
  ::setpgid(0, 0);
  if (std::freopen((directory / "log").c_str(), "w", stderr) == nullptr) ::_exit(127);
  if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(127);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  ::execvp(pointers[0], pointers.data());
  ::_exit(127);
}

BackgroundJob::~BackgroundJob() {
  if (!ended_) exit_code(0);
}

std::vector<std::string> BackgroundJob::noting(const std::filesystem::path& directory,
                                               const std::vector<std::string>& words) {
  std::vector<std::string> all = {"sh", "-c",
                                  "dir=$1; shift; echo $$ > $dir/new.$OMPI_COMM_WORLD_RANK; "
                                  "mv $dir/new.$OMPI_COMM_WORLD_RANK $dir/$OMPI_COMM_WORLD_RANK; exec \"$@\"",
                                  "sh", directory.string()};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

pid_t BackgroundJob::rank(int number) const {
  std::ifstream file(directory_ / std::to_string(number));
  pid_t pid = 0;
  file >> pid;
  return pid;
}

bool BackgroundJob::all_run(int ranks) const {
  for (int number = 0; number < ranks; ++number) {
    const pid_t pid = rank(number);
    if (pid <= 0 || ::kill(pid, 0) != 0) return false;
  }
  return true;
}

int BackgroundJob::exit_code(double timeout_s) {
  ended_ = true;
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  int status = 0;
  while (::waitpid(mpirun_, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      ::kill(-mpirun_, SIGKILL);
      ::waitpid(mpirun_, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string BackgroundJob::log() const {
  std::ifstream file(directory_ / "log");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

bool wait_until(const std::function<bool()>& reached) {
  for (const auto deadline = Clock::now() + std::chrono::seconds(60); Clock::now() < deadline;) {
    if (reached()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

std::size_t lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::size_t lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines;
}

}  // namespace motley::test
