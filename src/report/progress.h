// What a person sees while it runs, on standard output of rank 0. On a terminal: one line, redrawn in place.
// Elsewhere, or with --no-progress-bar: a plain line per interval.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "report/records.h"

namespace motley::report {

// json: the lines of metrics.jsonl, also on a terminal.
enum class LogFormat : std::uint8_t { none, simple, json };

// Parses --log-format; "tqdm", which HetSeq has as well, counts as simple. Error(usage) naming the formats.
LogFormat parse_log_format(const std::string& text);

class Progress {
 public:
  using Clock = double (*)();  // seconds since some moment, never going back
  static double steady_s();

  // `redraw`: standard output is a terminal and --no-progress-bar was not given. Holds for the simple format
  // alone. `now_s` decides when a tenth of a second is over; tests turn it by hand.
  Progress(LogFormat format, bool redraw, RunLength length, Clock now_s = steady_s);
  ~Progress();  // draws the last step if it was held back, ends an open line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // To be called for every step when redraws() (drawn at most ten times a second), for every interval
  // otherwise.
  void step(const StepRecord& record);
  void valid(const ValidRecord& record);

  bool redraws() const { return redraw_; }

 private:
  void draw(const StepRecord& record);
  void finish_line();
  double seconds_left(const StepRecord& record) const;

  LogFormat format_;
  bool redraw_;
  RunLength length_;
  Clock now_s_;
  double last_draw_s_ = -1;
  double seconds_per_step_ = 0;          // exponential mean, for the time left
  std::optional<StepRecord> held_back_;  // the newest step, when it came too soon after the last one drawn
};

// What step() prints, for terminals that are `columns` wide (0: unlimited): the epoch, the step, the loss,
// the metrics (fractions, i.e. accuracy and top5, in percent), the speed, the time left (left out when
// negative: not known) and each rank's share of the step spent working as "work 97 95 99 31 %"; with more
// ranks than fit, the least, the median and the most busy rank. Of what still does not fit whole fields are
// left out from the right, since half a number misleads.
std::string progress_text(const StepRecord& record, const RunLength& length, double seconds_left,
                          int columns);
std::string valid_text(const ValidRecord& record);
// "3:07", "2:15:00", from a day on "4 d 3 h"
std::string duration_text(double seconds);
// "0.3124", "2.303", "1.200e-05": four digits, as losses are shown
std::string value_text(double value);
// "21,450", and "20.3" below 100
std::string rate_text(double per_second);

}  // namespace motley::report
