// metrics.jsonl: one JSON object per line. Training lines: step, epoch, loss, lr, grad_norm, samples_per_s,
// step_s (mean per step), the task's metrics by name, and "ranks": [{n, compute_s, wait_s}] (means per step).
// Validation lines: "valid": subset, step, epoch, loss, metrics, samples, seconds. Numbers carry enough
// digits to be read back exactly. What is not a finite number (a loss that diverged, a rate over no time) is
// null, since JSON has no word for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "report/records.h"

namespace motley::report {

class MetricsFile {
 public:
  // Opens for appending. Lines beyond `last_step` (of a run that was killed after its last checkpoint) are
  // dropped, as are lines that are no records (a half-written last one); with last_step = 0 the file starts
  // empty. Error(input) when it cannot be written.
  MetricsFile(const std::filesystem::path& path, std::int64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Each line is written by one write(2). A disk that is full is warned of once; training goes on.
  void add(const StepRecord& record);
  void add(const ValidRecord& record);
  // A JSON object with a "step", without the end of the line.
  void add_line(std::string line);

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  bool warned_ = false;
};

// The lines themselves, for tests and for --log-format json.
std::string to_json_line(const StepRecord& record);
std::string to_json_line(const ValidRecord& record);

}  // namespace motley::report
