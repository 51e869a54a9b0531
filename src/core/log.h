// Messages for people. Everything goes to standard error, so that standard output stays machine-readable.
// Rank 0 speaks for the run; the other ranks are silent but for warnings and errors, which carry their rank.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace motley::log {

// Until this is called the process counts as rank 0. The number of ranks does not show in messages.
void set_rank(int rank);

// The line that report/progress redraws in place on a terminal (standard output). A message ends it first, so
// that both stay readable; one lock covers both, whichever thread they come from.
void draw_open_line(std::string_view text);  // `text` brings its own control characters, without a newline
void end_open_line();                        // nothing when no line is open

void write_info(std::string_view message);
void write_warning(std::string_view message);
void write_error(std::string_view message);

// Rank 0 only.
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write_info(fmt::format(format, std::forward<Args>(args)...));
}

// From any rank; "motley: warning: ..." on rank 0, "motley: [rank 3] warning: ..." elsewhere.
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  write_warning(fmt::format(format, std::forward<Args>(args)...));
}

// From any rank, tagged as warn() does.
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace motley::log
