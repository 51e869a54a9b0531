// The end-of-run summary: throughput, imbalance, time lost waiting, and advice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/records.h"

namespace motley::report {

class Summary {
 public:
  void add(const StepRecord& record);

  // Definitions, over all steps added:
  //   samples/s       = samples / wall time
  //   imbalance       = mean over steps of (largest compute_s of a rank / mean compute_s - 1), as GROMACS
  //                     reports it
  //   lost to waiting = sum of wait_s and read_s over ranks / (ranks * wall time)
  double samples_per_s() const;
  double imbalance() const;
  double lost_fraction() const;

  // For people; several lines, the last without a newline. When more than 5 % of rank-time was lost waiting,
  // a NOTE says which of four causes is the largest, and what would help:
  //   shares          = (busiest rank's compute_s - mean compute_s) / wall time, of the sums over the run:
  //                     one rank was always waited for. Gives the --weights that follow from the measured
  //                     speeds (n / compute_s), or with `balanced` shares (--policy auto) says why that can be.
  //   reading         = sum of read_s / (ranks * wall time)
  //   changing speeds = imbalance * mean compute_s / wall time - shares: ranks took turns in being the
  //                     slowest
  //   in common       = lost - those above: what the busiest rank waits too, for communication
  // `crowded`: ranks of a host share processors, so that they wait for each other's turns; the last two
  // causes are then put down to that.
  std::string text(bool crowded = false, bool balanced = false) const;

  // Speeds in samples per second of compute, one per rank; 0 for a rank that never had work.
  std::vector<double> speeds() const;

 private:
  std::int64_t steps_ = 0, samples_ = 0;
  double wall_s_ = 0, imbalance_sum_ = 0;
  std::vector<RankTime> ranks_;  // sums
};

// Small whole numbers in about the ratio of `speeds` (largest at most `limit`), each within 10 % where the
// limit allows: what the NOTE proposes as --weights.
std::vector<int> simple_ratio(const std::vector<double>& speeds, int limit = 20);

}  // namespace motley::report
