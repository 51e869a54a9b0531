// What a thread does between two polls of MPI: first it yields the processor and asks again, so that a short
// wait ends soon; then it sleeps for longer and longer, so that a long wait leaves the processor to those who
// compute (on a machine with more ranks than cores, often the very rank that is waited for).
#pragma once

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace motley::comm {

class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  Backoff() : start_(Clock::now()), active_(start_) {}

  // Seconds since construction or restart().
  double waited_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // Something was achieved: the wait, and the sequence of pauses, begin anew.
  void restart() {
    start_ = active_ = Clock::now();
    sleep_ = shortest_sleep;
  }

  // How long to sleep before the next poll; zero for as long as yielding is better, which this has then done.
  std::chrono::microseconds next_sleep() {
    if (Clock::now() - active_ < spin) {
      ::sched_yield();
      return std::chrono::microseconds{0};
    }
    const auto sleep = sleep_;
    sleep_ = std::min(2 * sleep_, longest_sleep);
    return sleep;
  }

  void pause() {
    const auto sleep = next_sleep();
    if (sleep.count() == 0) return;
    use_precise_timer();
    std::this_thread::sleep_for(sleep);
  }

  // Linux adds up to 50 us to every sleep of a thread that has not asked for better, more than the sleeps
  // here.
  static void use_precise_timer() {
    thread_local const int result = ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    static_cast<void>(result);
  }

 private:
  // Chosen with tests/bench/comm_bench, 4 ranks on 2 busy cores: sums of a few numbers, as batch norm needs
  // them, took 40 to 100 us, with 50 us of yielding 120 to 150; yielding for longer than this gained nothing.
  static constexpr std::chrono::microseconds spin{200}, shortest_sleep{20}, longest_sleep{200};

  Clock::time_point start_, active_;
  std::chrono::microseconds sleep_ = shortest_sleep;
};

}  // namespace motley::comm
