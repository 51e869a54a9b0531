// Plays a training run on a described cluster: the trainer's own Balancer chooses the shares, this file says
// what the steps then take. Pure: no MPI, no device, no clock; the same options give the same run.
#pragma once

#include <cstdint>
#include <vector>

#include "balance/balancer.h"
#include "balance/cluster.h"
#include "balance/slow.h"

namespace motley::balance {

struct SimulationOptions {
  PolicyKind policy = PolicyKind::automatic;
  std::vector<double> weights;  // one per rank, as BalancerOptions has them; empty: equal
  std::int64_t global_batch = 1;
  std::int64_t steps = 200;
  std::int64_t steps_per_epoch = 25;  // for dp and edp, which move once per epoch
  std::int64_t window = 16;
  std::vector<SlowSpec> slow;  // one per rank; empty: none
  // Compute times are multiplied by a log-normal variable of mean 1 and about this relative standard
  // deviation, drawn anew for every rank and step.
  double noise = 0;
  std::uint64_t seed = 19940802;
};

struct Simulation {
  // Step by step, the all-reduce included: as played, and as it would be without noise and with every random
  // delay of --slow at its mean.
  std::vector<double> step_s, expected_s;
  std::vector<std::int64_t> shares;  // by rank, of the last step
  std::int64_t changes = 0;          // how often the shares moved

  // Steps before the first from which on the expected step stays within 5 % of that of the last one.
  std::int64_t steps_to_settle() const;
  // Mean over the steps from there on, but over no fewer than a quarter of the run.
  double settled_s() const;
};

// Windows are planned as the trainer plans them: window k + 1 when window k starts, from the times of those
// up to k - 1. Ranks that hold no sample get no share. Error(usage) when none does, or a number of the
// options is below 1.
Simulation simulate(const Cluster& cluster, const SimulationOptions& options);

// What --policy static is given to divide by: samples per second of every rank.
std::vector<double> speeds(const Cluster& cluster);

}  // namespace motley::balance
