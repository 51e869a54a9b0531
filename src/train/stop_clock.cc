#include "train/stop_clock.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace motley::train {

double StopClock::ends_s() const {
  double ends = std::numeric_limits<double>::infinity();
  if (times_.stop_after_s > 0) ends = times_.stop_after_s + times_.checkpoint_deadline_s;
  if (times_.job_ends_s > 0) ends = std::min(ends, times_.job_ends_s);
  return ends == std::numeric_limits<double>::infinity() ? 0 : ends;
}

double StopClock::needed_s() const {
  return std::max(times_.checkpoint_deadline_s, 1.5 * (save_s_ + step_s_));
}

double seconds_to_job_end() {
  const char* const text = std::getenv("SLURM_JOB_END_TIME");
  if (text == nullptr) return 0;
  const std::string_view digits(text);
  long long end = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), end);
  if (error != std::errc() || stop != digits.data() + digits.size()) return 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::max(0.0, static_cast<double>(end) - std::chrono::duration<double>(now).count());
}

}  // namespace motley::train
