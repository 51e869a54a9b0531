// The compute region of a rank: opens after the last communication of a step and closes before the next, so
// that waiting is never counted as work (as GROMACS' dynamic load balancing measures it). A rank that plays a
// slower device (--slow) sleeps inside the region, so that its compute time grows as a slower device's would.
#pragma once

#include <chrono>
#include <string>

#include "comm/communicator.h"

namespace motley::train {

// How many times slower this rank is to play, from --slow (empty: 1).
double slow_factor(const std::string& slow, const comm::Communicator& world);

class ComputeRegion {
 public:
  // slow_factor >= 1: the region takes this many times as long as its work.
  explicit ComputeRegion(double slow_factor) : slow_factor_(slow_factor) {}

  void open();
  // Sleeps off the slowness owed for the work since the last lap. Called wherever results become visible to
  // other ranks while the region is open: a gradient bucket must not leave a slow rank early.
  void lap();
  void close();

  // Seconds that the region was open since the last call, sleep included.
  double take_seconds();

 private:
  using Clock = std::chrono::steady_clock;
  double slow_factor_;
  Clock::time_point opened_, lap_started_;
  double owed_s_ = 0;
  double seconds_ = 0;
};

}  // namespace motley::train
