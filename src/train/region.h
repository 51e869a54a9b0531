// The compute region of a rank: opens after the last communication of a step and closes before the next, so
// that waiting is never counted as work (as GROMACS' dynamic load balancing measures it). A rank that plays a
// slower device (--slow) sleeps inside the region, so that its compute time grows as a slower device's would.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "balance/slow.h"
#include "comm/communicator.h"
#include "kernels/backend.h"

namespace motley::train {

// What the region was open for, in seconds.
struct RegionTimes {
  double compute_s = 0;  // from opening to closing, sleep included, waits not
  double slept_s = 0;    // of that, asleep for --slow
  double waited_s = 0;   // between begin_wait() and end_wait()
  // Of each micro-batch, by the device's own marks; sleep that fell into it included, waits not.
  std::vector<double> micro_batches_s;
};

class ComputeRegion {
 public:
  // `slow` is what --slow says of this rank, `seed` that of its random delays. The backend must outlive the
  // region.
  ComputeRegion(Backend& backend, const balance::SlowSpec& slow, int rank, std::uint64_t seed);
  // Of the rank's entry in --slow ("": none).
  ComputeRegion(Backend& backend, const std::string& slow, const comm::Communicator& world,
                std::uint64_t seed);

  // The regions that follow belong to this step, in which the rank has n samples. A delay per batch is owed
  // once per call, by a rank that has any.
  void begin_step(std::int64_t step, std::int64_t n);
  void open();
  // Sleeps off the slowness owed for the work since the last lap. Called wherever results become visible to
  // other ranks while the region is open: a gradient bucket must not leave a slow rank early.
  void lap();
  // Around what waits for other ranks while the region is open, in the device's order of operations. The sleep that is
  // owed comes before.
  void begin_wait();
  void end_wait();
  // Whether sleep may be owed: lap() then waits for the device.
  bool is_slow() const { return !slow_.empty(); }
  // Around each micro-batch, while the region is open.
  void begin_micro_batch();
  void end_micro_batch();
  // Those since open() do not count: they ran out of memory, and the share is run again.
  void forget_micro_batches() { micro_batches_.clear(); }
  // Waits for the device.
  void close();

  // Of what was open since the last call.
  RegionTimes take();

 private:
  using Clock = std::chrono::steady_clock;
  Backend& backend_;
  balance::SlowSpec slow_;
  int rank_;
  std::uint64_t seed_;
  double factor_ = 1;
  Clock::time_point opened_, lap_started_;
  double owed_s_ = 0;
  RegionTimes times_;
  struct Span {
    std::int64_t begin = 0, end = 0;            // marks
    std::size_t first_wait = 0, last_wait = 0;  // of a micro-batch: the waits in it
  };
  double seconds_of(const Span& span) const { return backend_.seconds_between(span.begin, span.end); }
  std::vector<Span> micro_batches_, waits_;
};

}  // namespace motley::train
