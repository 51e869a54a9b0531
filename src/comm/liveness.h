// Whether a run is still moving. A wait on another rank has a deadline (law 5), but a rank that computes for longer than that
// is no reason to end a job: the deadline of all waits of a process passes only when nothing has moved on any rank for so
// long. Who asks and who says so meet here; without a Heartbeat (comm/heartbeat.h) every wait has its own clock alone.
#pragma once

#include <cstdint>
#include <string>

namespace motley::comm {

// Of this process; cheap, and callable from any thread.
//
// Something was achieved: a micro-batch, a window read, a wait ended.
void note_progress();
// What the main thread does from now on, in the words of a sentence: "was last seen {computing}". A literal.
void note_phase(const char* phase);
void note_step(std::int64_t step);

// While one lives on the thread that made the Heartbeat, that thread waits for other ranks; elsewhere it does nothing.
class WaitMark {
 public:
  explicit WaitMark(const char* what);
  ~WaitMark();
  WaitMark(const WaitMark&) = delete;
  WaitMark& operator=(const WaitMark&) = delete;

 private:
  bool marks_;
};

// Whether a wait that has lasted for `waited_s` is to end with an error.
bool deadline_passed(double waited_s, double timeout_s);

// What is known of this process, for its heartbeat.
struct OwnState {
  std::int64_t step = 0;
  std::uint64_t progress = 0;
  bool waiting = false;
  double since_s = 0;  // of the clock of core/clock.h: when what it does began
  std::string doing;   // a phase, or what it waits for
};
OwnState own_state();

// Says for how many seconds nothing has moved anywhere, as far as this process knows.
class StallClock {
 public:
  virtual ~StallClock() = default;
  virtual double stalled_s() const = 0;
  // What the sentence of a wait that ends should say besides: "rank 0 (host a, ...) has not been heard of for 4 s", or nothing.
  virtual std::string remark() const = 0;
};
std::string stall_remark();
// From here on deadlines go by `clock` as well; null: by themselves. One at a time. The calling thread is the main one.
void use_stall_clock(const StallClock* clock);

}  // namespace motley::comm
