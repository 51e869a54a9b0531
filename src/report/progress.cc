#include "report/progress.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "core/log.h"
#include "report/metrics.h"
#include "report/terminal.h"

namespace motley::report {
namespace {

constexpr double redraw_every_s = 0.1;
constexpr double steps_averaged = 50;  // the time left follows a change of speed within about so many steps
constexpr int plain_columns = 240;     // a log file of a run on hundreds of ranks stays readable

std::string grouped(std::int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (i > 0 && left % 3 == 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

bool is_fraction(const std::string& name) {
  if (name.ends_with("accuracy")) return true;
  return name.starts_with("top") && name.size() > 3 &&
         std::all_of(name.begin() + 3, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string metric_text(const std::string& name, double value, bool fraction) {
  if (fraction && std::isfinite(value)) return fmt::format("{} {:.1f} %", name, 100 * value);
  return fmt::format("{} {}", name, value_text(value));
}

std::vector<int> work_percents(const StepRecord& record) {
  std::vector<int> percents;
  percents.reserve(record.ranks.size());
  for (const RankTime& rank : record.ranks) {
    percents.push_back(
        static_cast<int>(std::lround(100 * std::clamp(rank.compute_s / record.step_s, 0.0, 1.0))));
  }
  return percents;
}

std::string work_of_each(const std::vector<int>& percents) {
  return fmt::format("work {} %", fmt::join(percents, " "));
}

std::string work_in_short(std::vector<int> percents) {
  std::sort(percents.begin(), percents.end());
  return fmt::format("work {} least {} median {} most %", percents.front(), percents[percents.size() / 2],
                     percents.back());
}

std::string of_total(std::int64_t value, std::int64_t total) {
  return total > 0 ? fmt::format("{}/{}", value, total) : fmt::format("{}", value);
}

void print_line(const std::string& text) {
  std::fwrite((text + "\n").data(), 1, text.size() + 1, stdout);
  std::fflush(stdout);
}

}  // namespace

std::string value_text(double value) {
  // From a thousand on four digits leave none behind the point.
  const double size = std::abs(value);
  return size >= 999.95 && size < 9999.5 ? fmt::format("{:.0f}", value) : fmt::format("{:#.4g}", value);
}

std::string rate_text(double per_second) {
  if (per_second < 100) return fmt::format("{:.1f}", per_second);
  return grouped(std::llround(per_second));
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e15) return "?";
  const std::int64_t whole = std::llround(seconds);
  const std::int64_t minutes = whole / 60, hours = minutes / 60, days = hours / 24;
  if (days > 0) return fmt::format("{} d {} h", days, hours % 24);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes % 60, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

namespace {

constexpr std::size_t most_metrics = 3;  // metrics.jsonl has all

// How much is said: the first metrics, the first one only, or that in short words.
enum class Detail : std::uint8_t { all, first_metric, terse };

// "mlm_accuracy" is "mlm_acc".
std::string in_short(const std::string& name) {
  constexpr std::string_view word = "accuracy", brief = "acc";
  return name.ends_with(word) ? name.substr(0, name.size() - word.size()).append(brief) : name;
}

std::vector<std::string> progress_fields(const StepRecord& record, const RunLength& length,
                                         double seconds_left, Detail detail) {
  const bool terse = detail == Detail::terse;
  std::vector<std::string> fields = {(terse ? "" : "epoch ") + of_total(record.epoch, length.total_epochs),
                                     (terse ? "" : "step ") + of_total(record.step, length.total_steps),
                                     "loss " + value_text(record.loss)};
  std::size_t said = 0;
  for (const auto& [name, value] : record.metrics) {
    fields.push_back(metric_text(terse ? in_short(name) : name, value, is_fraction(name)));
    if (detail != Detail::all || ++said == most_metrics) break;
  }
  if (record.step_s > 0) {
    fields.push_back(rate_text(static_cast<double>(record.samples) / record.step_s) +
                     (terse ? "/s" : " samples/s"));
  }
  if (seconds_left >= 0 && std::isfinite(seconds_left)) {
    const std::string left = duration_text(seconds_left);
    fields.push_back(terse ? "eta " + left : left + " left");
  }
  return fields;
}

std::string joined(const std::vector<std::string>& fields) {
  return fmt::format("{}", fmt::join(fields, "  "));
}

}  // namespace

std::string progress_text(const StepRecord& record, const RunLength& length, double seconds_left,
                          int columns) {
  const std::size_t room = columns > 0 ? static_cast<std::size_t>(columns) : std::string::npos;
  const bool has_work = record.step_s > 0 && !record.ranks.empty();
  std::vector<std::string> fields;
  for (const Detail detail : {Detail::all, Detail::first_metric, Detail::terse}) {
    fields = progress_fields(record, length, seconds_left, detail);
    if (has_work) {
      fields.push_back(work_of_each(work_percents(record)));
      if (joined(fields).size() > room) {
        const std::string brief = work_in_short(work_percents(record));
        if (brief.size() < fields.back().size()) fields.back() = brief;
      }
    }
    if (joined(fields).size() <= room) return joined(fields);
  }
  // Still too long: fields go from the right.
  while (fields.size() > 1 && joined(fields).size() > room) fields.pop_back();
  return joined(fields).substr(0, room);
}

std::string valid_text(const ValidRecord& record) {
  std::string text = fmt::format("{}  epoch {}  step {}  loss {}", record.subset, record.epoch, record.step,
                                 value_text(record.loss));
  for (const auto& [name, value] : record.metrics) {
    text += "  " + metric_text(name, value, is_fraction(name));
  }
  const std::string took =
      record.seconds < 60 ? fmt::format("{:.1f} s", record.seconds) : duration_text(record.seconds);
  return text + fmt::format("  {} samples in {}", grouped(record.samples), took);
}

LogFormat parse_log_format(const std::string& text) {
  if (text == "none") return LogFormat::none;
  if (text == "simple" || text == "tqdm") return LogFormat::simple;
  if (text == "json") return LogFormat::json;
  fail(ExitCode::usage, "--log-format is none, simple or json, not \"{}\"", text);
}

double Progress::steady_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Progress::Progress(LogFormat format, bool redraw, RunLength length, Clock now_s)
    : format_(format), redraw_(redraw && format == LogFormat::simple), length_(length), now_s_(now_s) {}

Progress::~Progress() {
  try {
    finish_line();
  } catch (...) {  // NOLINT(bugprone-empty-catch): a progress line is not worth a terminate
  }
}

double Progress::seconds_left(const StepRecord& record) const {
  const std::int64_t last = length_.total_steps;
  if (last <= 0 || seconds_per_step_ <= 0) return -1;
  return static_cast<double>(std::max<std::int64_t>(last - record.step, 0)) * seconds_per_step_;
}

void Progress::draw(const StepRecord& record) {
  // The last column stays free: a cursor that stands past it makes some terminals wrap, and erase the last
  // letter.
  const int columns = std::max(terminal_columns() - 1, 1);
  log::draw_open_line(
      fmt::format("\r{}\x1b[K", progress_text(record, length_, seconds_left(record), columns)));
  held_back_.reset();
}

void Progress::finish_line() {
  if (!redraw_) return;
  if (held_back_) draw(*held_back_);
  log::end_open_line();
}

void Progress::step(const StepRecord& record) {
  if (record.steps > 0 && record.step_s > 0) {
    const double per_step = record.step_s / static_cast<double>(record.steps);
    const double kept =
        seconds_per_step_ > 0 ? std::pow(1 - 1 / steps_averaged, static_cast<double>(record.steps)) : 0.0;
    seconds_per_step_ = kept * seconds_per_step_ + (1 - kept) * per_step;
  }
  if (redraw_) {
    const double now = now_s_();
    if (last_draw_s_ >= 0 && now - last_draw_s_ < redraw_every_s) {
      held_back_ = record;
      return;
    }
    last_draw_s_ = now;
    draw(record);
  } else if (format_ == LogFormat::simple) {
    print_line(progress_text(record, length_, seconds_left(record), plain_columns));
  } else if (format_ == LogFormat::json) {
    print_line(to_json_line(record));
  }
}

void Progress::valid(const ValidRecord& record) {
  finish_line();
  if (format_ == LogFormat::simple) print_line(valid_text(record));
  if (format_ == LogFormat::json) print_line(to_json_line(record));
}

}  // namespace motley::report
