// How far a command has come with its input, on standard output of rank 0: on a terminal one line, redrawn in
// place; elsewhere a plain line every ten seconds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "report/progress.h"

namespace motley::report {

class WorkLine {
 public:
  // `redraw`: standard output is a terminal. `total_bytes` of input, 0 when it is not known.
  WorkLine(bool redraw, std::uint64_t total_bytes, Progress::Clock now_s = Progress::steady_s);
  ~WorkLine();  // ends an open line
  WorkLine(const WorkLine&) = delete;
  WorkLine& operator=(const WorkLine&) = delete;

  // `what` is what there is to say besides ("12 shards").
  void update(std::uint64_t bytes, const std::string& what);
  // The same with a text of the caller's own, which is asked for when a line is due.
  void update(const std::function<std::string(double seconds)>& text);

 private:
  bool redraw_;
  std::uint64_t total_bytes_;
  Progress::Clock now_s_;
  double started_s_, last_s_;
};

// "61.4 MB of 1.2 GB  12 shards  20.5 MB/s  0:57 left"
std::string work_text(std::uint64_t bytes, std::uint64_t total_bytes, double seconds,
                      const std::string& what);
// "512 B", "61.4 MB", "1.2 GB": powers of ten
std::string bytes_text(double bytes);

}  // namespace motley::report
