#include "report/work_line.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/log.h"
#include "report/terminal.h"

namespace motley::report {
namespace {

constexpr double redraw_every_s = 0.1, plain_every_s = 10;

}  // namespace

WorkLine::WorkLine(bool redraw, std::uint64_t total_bytes, Progress::Clock now_s)
    : redraw_(redraw), total_bytes_(total_bytes), now_s_(now_s), started_s_(now_s()), last_s_(started_s_) {}

WorkLine::~WorkLine() {
  try {
    if (redraw_) log::end_open_line();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a progress line is not worth a terminate
  }
}

void WorkLine::update(std::uint64_t bytes, const std::string& what) {
  update([&](double seconds) { return work_text(bytes, total_bytes_, seconds, what); });
}

void WorkLine::update(const std::function<std::string(double seconds)>& say) {
  const double now = now_s_();
  if (now - last_s_ < (redraw_ ? redraw_every_s : plain_every_s)) return;
  last_s_ = now;
  std::string text = say(now - started_s_);
  if (redraw_) {
    // The last column stays free: a cursor past it makes some terminals wrap.
    const auto columns = static_cast<std::size_t>(terminal_columns() > 1 ? terminal_columns() - 1 : 1);
    if (text.size() > columns) text.resize(columns);
    log::draw_open_line(fmt::format("\r{}\x1b[K", text));
  } else {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
}

std::string work_text(std::uint64_t bytes, std::uint64_t total_bytes, double seconds,
                      const std::string& what) {
  const auto done = static_cast<double>(bytes), total = static_cast<double>(total_bytes);
  std::string text = bytes_text(done);
  if (total_bytes > 0) text += " of " + bytes_text(total);
  text += "  " + what;
  if (seconds > 0 && bytes > 0) {
    text += fmt::format("  {}/s", bytes_text(done / seconds));
    if (total > done) text += fmt::format("  {} left", duration_text((total - done) / done * seconds));
  }
  return text;
}

std::string bytes_text(double bytes) {
  const char* const units[] = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{:.0f} B", bytes);
  const char* unit = "";
  for (const char* larger : units) {
    unit = larger;
    bytes /= 1000;
    if (bytes < 999.95) break;
  }
  return fmt::format("{:.1f} {}", bytes, unit);
}

}  // namespace motley::report
