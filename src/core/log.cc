#include "core/log.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>

namespace motley::log {
namespace {

std::atomic<int> g_rank{0};
std::mutex g_mutex;
bool g_open_line = false;  // under g_mutex

// One write per text where the system allows: lines of several processes do not mix.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void close_open_line() {
  if (g_open_line) write_all(STDOUT_FILENO, "\n");
  g_open_line = false;
}

void emit(std::string_view kind, std::string_view message) {
  std::string line = "motley: ";
  const int rank = g_rank.load();
  if (rank != 0) line += fmt::format("[rank {}] ", rank);
  line += kind;
  line += message;
  line += '\n';
  const std::scoped_lock lock(g_mutex);
  std::fflush(stdout);
  close_open_line();
  write_all(STDERR_FILENO, line);
}

}  // namespace

void set_rank(int rank) {
  g_rank = rank;
}

void draw_open_line(std::string_view text) {
  const std::scoped_lock lock(g_mutex);
  std::fflush(stdout);
  g_open_line = true;
  write_all(STDOUT_FILENO, text);
}

void end_open_line() {
  const std::scoped_lock lock(g_mutex);
  close_open_line();
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
