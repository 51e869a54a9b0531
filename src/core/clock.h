// The clock that durations are measured by.
#pragma once

#include <chrono>

namespace motley {

// Seconds of the steady clock, from a point that is the same within a process.
inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace motley
