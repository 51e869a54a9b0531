// The share solver: the division of a global batch that makes the slowest rank as fast as possible. Pure
// functions of numbers: no MPI, no device, no clock.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace motley::balance {

// What a share costs its rank: t(0) = 0 and t(n) = fixed_s + n * sample_s seconds for 1 <= n <= cap. A rank
// without a share takes no part in the work of a step, so that it does not pay the fixed part either.
struct RankCost {
  // Finite and >= 0.
  double fixed_s = 0, sample_s = 0;
  // Largest share, >= 0.
  std::int64_t cap = std::numeric_limits<std::int64_t>::max();
};

// Seconds for a share of n >= 0, whatever the cap: never fewer for a larger share, and the same everywhere.
double seconds_for(const RankCost& cost, std::int64_t n);

struct Division {
  std::vector<std::int64_t> shares;  // one per rank; they sum to the batch
  double slowest_s = 0;              // max over ranks of seconds_for(cost, share)
};

// The shares that minimise the slowest rank's time, exactly: every other division has a slowest rank at least
// as slow, in the same floating-point arithmetic. Of several such divisions, the one that a greedy hand-out
// gives (every sample to the rank that would finish it first, ties to the lower rank), so that all machines
// compute the same. O(R log R) in the number of ranks, whatever the batch.
// Throws Error(usage) when the caps sum to less than the batch, saying by how much, or when a cost is
// negative or not finite or a cap is negative, naming the rank.
Division min_max_shares(std::int64_t batch, std::span<const RankCost> ranks);

// The batch divided without regard to whole samples: the time at which all ranks that are worth using finish
// together or reach their caps. No division, integer or not, is faster, but for rounding. 0 for an empty
// batch. Throws as min_max_shares() does.
double ideal_seconds(std::int64_t batch, std::span<const RankCost> ranks);

}  // namespace motley::balance
