#include "report/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace motley::report {
namespace {

// The value of "Name:" or "PPid:" in /proc/<pid>/status; empty when there is none.
std::string status_of(int pid, const std::string& key) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return line.substr(line.find_first_not_of(" \t", key.size() + 1));
  }
  return {};
}

bool is_launcher(const std::string& name) {
  return name == "mpirun" || name == "mpiexec" || name == "orterun" || name == "prterun" || name == "prte";
}

bool is_daemon(const std::string& name) {
  return name == "orted" || name == "prted";
}

// The mpirun among the ancestors of this process; 0 when there is none, -1 when it runs on another host and only its
// daemon is here.
int launcher() {
  int pid = ::getppid();
  for (int depth = 0; pid > 1 && depth < 16; ++depth) {
    const std::string name = status_of(pid, "Name");
    if (is_launcher(name)) return pid;
    if (is_daemon(name)) return -1;
    pid = std::atoi(status_of(pid, "PPid").c_str());
  }
  return 0;
}

// A descriptor of the terminal that standard output ends up on; -1 when it is none. `owned`: to be closed.
int open_terminal(bool& owned) {
  owned = false;
  const int pid = launcher();
  if (pid == 0) return ::isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : -1;
  if (pid < 0) return -1;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/1";
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  owned = ::isatty(fd) == 1;
  if (!owned) ::close(fd);
  return owned ? fd : -1;
}

}  // namespace

bool stdout_is_terminal() {
  bool owned = false;
  const int fd = open_terminal(owned);
  if (owned) ::close(fd);
  return fd >= 0;
}

int terminal_columns() {
  bool owned = false;
  const int fd = open_terminal(owned);
  winsize size{};
  const bool known = fd >= 0 && ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  if (owned) ::close(fd);
  return known ? size.ws_col : 80;
}

}  // namespace motley::report
