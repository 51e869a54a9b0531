#include "comm/liveness.h"

#include <atomic>
#include <mutex>

#include "core/clock.h"
#include "core/error.h"

namespace motley::comm {
namespace {

// A rank that knows who is missing gets to say so before the others end.
constexpr double grace_s = 2;

std::atomic<std::uint64_t> progress{0};
std::atomic<const StallClock*> stall_clock{nullptr};
thread_local bool is_main_thread = false;

// What the main thread does.
std::mutex mutex;
std::int64_t step = 0;
const char* phase = "starting";
bool waiting = false;
double since_s = 0;
std::string awaited;

}  // namespace

void note_progress() {
  progress.fetch_add(1, std::memory_order_relaxed);
}

void note_phase(const char* now) {
  note_progress();
  const std::lock_guard lock(mutex);
  phase = now;
  since_s = now_s();
}

void note_step(std::int64_t now) {
  const std::lock_guard lock(mutex);
  step = now;
}

WaitMark::WaitMark(const char* what) : marks_(is_main_thread) {
  if (!marks_) return;
  const std::lock_guard lock(mutex);
  marks_ = !waiting;  // the outer one tells more
  if (!marks_) return;
  waiting = true;
  awaited = what;
  since_s = now_s();
}

WaitMark::~WaitMark() {
  if (!marks_) return;
  note_progress();
  const std::lock_guard lock(mutex);
  waiting = false;
  since_s = now_s();
}

bool deadline_passed(double waited_s, double timeout_s) {
  if (waited_s <= timeout_s) return false;
  const StallClock* const clock = stall_clock.load();
  return clock == nullptr || clock->stalled_s() > timeout_s + grace_s;
}

std::string stall_remark() {
  const StallClock* const clock = stall_clock.load();
  return clock == nullptr ? std::string() : clock->remark();
}

OwnState own_state() {
  const std::lock_guard lock(mutex);
  return {step, progress.load(std::memory_order_relaxed), waiting, since_s,
          waiting ? awaited : std::string(phase)};
}

void use_stall_clock(const StallClock* clock) {
  MOTLEY_CHECK(clock == nullptr || stall_clock.load() == nullptr);
  stall_clock = clock;
  is_main_thread = clock != nullptr;
}

}  // namespace motley::comm
