// What a person sees while it runs, on standard output of rank 0. On a terminal: one line, redrawn in place.
// Elsewhere, or with --no-progress-bar: a plain line per interval.
#pragma once

#include <cstdint>
#include <string>

#include "report/records.h"

namespace motley::report {

enum class LogFormat : std::uint8_t { none, simple, json };

// Parses --log-format; Error(usage) naming the formats.
LogFormat parse_log_format(const std::string& text);

class Progress {
 public:
  // `redraw`: standard output is a terminal and --no-progress-bar was not given.
  Progress(LogFormat format, bool redraw, RunLength length);
  ~Progress();  // ends an open line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Every step on a terminal, at most ten times a second; every interval otherwise.
  void step(const StepRecord& record);
  void valid(const ValidRecord& record);

  bool redraws() const { return redraw_; }

 private:
  LogFormat format_;
  bool redraw_;
  RunLength length_;
  double last_draw_s_ = 0;
  double seconds_per_step_ = 0;  // exponential mean, for the time left
  bool line_open_ = false;
};

// The texts, apart from the terminal: what step() prints, for `columns` wide terminals (0: unlimited). Each
// rank's share of the step spent working is shown as "work 97 95 99 31 %"; with more ranks than fit, the
// least, the median and the most busy rank.
std::string progress_text(const StepRecord& record, const RunLength& length, double seconds_left,
                          int columns);
std::string valid_text(const ValidRecord& record);
// "3:07", "2:15:00", "4 d 3 h"
std::string duration_text(double seconds);

}  // namespace motley::report
