// What a cluster would make of a global batch: shares, step time, what limits it, and which nodes are worth
// their place. Pure functions of numbers: no MPI, no device, no clock.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "balance/cluster.h"

namespace motley::balance {

enum class Limit : std::uint8_t { compute, memory, network };
const char* limit_name(Limit limit);

// The step as the solver divides it. No overlap of the all-reduce with the backward pass is assumed, so that
// a real step is at most this long where there is some.
struct StepEstimate {
  double compute_s = 0;  // of the slowest rank
  double network_s = 0;  // all-reduce of the gradients; 0 when network or gradients are not known
  double step_s() const { return compute_s + network_s; }
};

// What a group of ranks on one node, or on nodes of the same description, adds or costs.
struct NodeVerdict {
  std::string node;        // the first of them
  std::int64_t nodes = 1;  // of the same description
  std::int64_t ranks = 1;  // of one of them
  // The step without one of these nodes, both for the work and for the ring; infinite when the others cannot
  // do it.
  double without_s = std::numeric_limits<double>::infinity();
  // Against the step with it: above 0 it is faster with the node.
  double gain = 0;
};

// Below this a node's gain or loss is called no difference.
constexpr double gain_that_counts = 0.01;

struct Plan {
  std::int64_t global_batch = 0;
  std::vector<std::int64_t> shares, micro_batches;  // by rank; micro_batches: the largest, 0: holds no sample
  std::vector<double> compute_s;                    // by rank
  StepEstimate times;
  double ideal_s = 0;     // global batch / sum of all speeds, of ranks that hold no sample too
  double efficiency = 0;  // ideal_s / step
  Limit limit = Limit::compute;
  std::string advice;                 // one sentence
  std::vector<NodeVerdict> nodes;     // in the order of the ranks
  std::int64_t nodes_left_out = 0;    // of a large cluster: the fastest, which were not tried without
  std::vector<std::string> left_out;  // what the cluster does not say, and the prediction therefore lacks
};

// Error(usage) when the batch is below 1 or no rank holds a sample.
Plan make_plan(const Cluster& cluster, std::int64_t global_batch);

// Only the times of that step.
StepEstimate estimate_step(const Cluster& cluster, std::int64_t global_batch);

}  // namespace motley::balance
