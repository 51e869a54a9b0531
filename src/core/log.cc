#include "core/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace motley::log {
namespace {

std::atomic<int> g_rank{0};
std::atomic<int> g_size{1};
std::atomic<bool> g_open_line{false};
std::mutex g_mutex;

void emit(std::string_view kind, std::string_view message) {
  std::string line;
  // Ends a progress line that stands unfinished on the terminal, so that the message gets a line of its own.
  if (g_open_line.exchange(false)) line += "\n";
  line += "motley: ";
  const int rank = g_rank.load();
  if (rank != 0) line += fmt::format("[rank {}] ", rank);
  line += kind;
  line += message;
  line += '\n';
  const std::scoped_lock lock(g_mutex);
  std::fflush(stdout);
  // One write per message: lines of several processes do not mix.
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
}

}  // namespace

void set_rank(int rank, int size) {
  g_rank = rank;
  g_size = size;
}

void set_open_line(bool open) {
  g_open_line = open;
}

void write_info(std::string_view message) {
  if (g_rank.load() == 0) emit("", message);
}

void write_warning(std::string_view message) {
  emit("warning: ", message);
}

void write_error(std::string_view message) {
  emit("error: ", message);
}

}  // namespace motley::log
