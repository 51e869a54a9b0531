// Sums over ranks of a few numbers at a time, each of which is needed before the work goes on: the statistics of batch
// norm, in the middle of a pass. Sums have the same bits on every rank and in every run.
#pragma once

#include "core/view.h"

namespace motley::comm {

class SmallSum {
 public:
  SmallSum() = default;
  virtual ~SmallSum() = default;
  SmallSum(const SmallSum&) = delete;
  SmallSum& operator=(const SmallSum&) = delete;

  // values (float64, memory of the rank's device) = their sum over all ranks, for what follows in the device's order of
  // operations. `what` is named when it is late. Throws Error(communication) when the deadline passes; the object is of no
  // use after that. Collective: every rank calls it equally often, with as many values.
  virtual void add_up(View values, const char* what) = 0;
  // Waits, with the deadline, until the device has come to the end of the sums so far: a device itself waits without one.
  virtual void wait(const char* what) = 0;
};

}  // namespace motley::comm
