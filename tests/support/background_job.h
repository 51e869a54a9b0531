// A job of mpirun that runs beside the test, whose processes can be killed or stopped.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace motley::test {

class BackgroundJob {
 public:
  // `directory`: for what the ranks leave; must be this job's own. `words`: those of mpirun_command, in which each
  // program is started through noting(directory, ...).
  using Environment = std::vector<std::pair<std::string, std::string>>;
  BackgroundJob(const std::filesystem::path& directory, const std::vector<std::string>& words,
                const Environment& environment = {});
  // Ends what is still running.
  ~BackgroundJob();
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;

  // `words`, started so that the rank leaves its process id.
  static std::vector<std::string> noting(const std::filesystem::path& directory,
                                         const std::vector<std::string>& words);

  pid_t mpirun() const { return mpirun_; }
  // 0 before the rank has started.
  pid_t rank(int number) const;
  bool all_run(int ranks) const;
  // Waits for mpirun to end; -1 when it does not within the time (it is then killed).
  int exit_code(double timeout_s);
  // What the job has written to standard error.
  std::string log() const;

 private:
  std::filesystem::path directory_;
  pid_t mpirun_ = 0;
  bool ended_ = false;
};

// Asks until `reached`, for at most a minute. False when it does not come about.
bool wait_until(const std::function<bool()>& reached);

// Lines of the file; 0 when there is none.
std::size_t lines_of(const std::filesystem::path& file);

}  // namespace motley::test
