// What is known of a cluster: how fast every rank computes, what it can hold, and how fast the network sums
// gradients. Measured by `motley probe`, written by hand, or made up by `--nodes`; read by the planner
// (plan.h) and the simulator (simulator.h).
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "balance/shares.h"
#include "balance/solver.h"
#include "core/json.h"

namespace motley::balance {

// A step of n samples in micro-batches of m takes fixed_s + ceil(n / m) micro_s + n sample_s.
struct ClusterRank {
  std::string node;    // ranks of one name are one machine
  std::string device;  // for people
  double fixed_s = 0;  // once per step, whatever the share: the optimizer
  double micro_s = 0;  // once per micro-batch
  double sample_s = 0;
  // 0: not known; without limit and sample nothing is said about memory.
  std::int64_t memory_limit_bytes = 0;
  std::int64_t model_bytes = 0;   // parameters, gradients and the optimizer's state
  std::int64_t sample_bytes = 0;  // what one more sample in a micro-batch takes

  // Any order: ranks are grouped by it.
  friend auto operator<=>(const ClusterRank&, const ClusterRank&) = default;
};

struct Network {
  double latency_s = 0;
  double bytes_per_s = 0;
};

struct Cluster {
  std::vector<ClusterRank> ranks;
  std::optional<Network> network;
  std::int64_t gradient_bytes = 0;  // 0: not known
  std::int64_t max_sentences = 64;  // largest micro-batch that is wanted
  std::int64_t global_batch = 0;    // 0: not said
};

// The same rank on a node without a name: what makes two ranks, and two nodes, interchangeable.
ClusterRank nameless(ClusterRank rank);

// Samples in the largest micro-batch that the rank runs: max_sentences, or fewer where its memory holds no
// more. 0: it does not even hold one.
std::int64_t largest_micro_batch(const ClusterRank& rank, std::int64_t max_sentences);

// Seconds that a rank computes for a share of n. Without a share it still takes the optimizer's step.
double compute_seconds(const ClusterRank& rank, std::int64_t micro_batch, std::int64_t n);

// The same cost made straight for the solver: micro-batches are counted in fractions.
RankCost affine_cost(const ClusterRank& rank, std::int64_t micro_batch);

// Seconds to sum the gradients over `ranks` ranks by a ring: 2 (R - 1) latencies and 2 (R - 1) / R times the
// bytes over every link (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 69, 2009; the terms are those of Thakur, Rabenseifner and Gropp, "Optimization of
// collective communication operations in MPICH", IJHPCA 19, 2005). 0 for one rank.
double all_reduce_seconds(const Network& network, double bytes, std::int64_t ranks);
// The same for the gradients and all ranks of a cluster; 0 where the network or the bytes are not known.
double all_reduce_seconds(const Cluster& cluster);
// The network that sums in latency_s + bytes * s_per_byte by that formula.
Network network_of_line(double latency_s, double s_per_byte, std::int64_t ranks);

Json to_json(const ClusterRank& rank);
Json to_json(const Network& network);
Json to_json(const Cluster& cluster);
// Error(input) with one sentence that names `where`, the key, and what was expected there.
Cluster cluster_from_json(const Json& json, const std::string& where);

// How --nodes is turned into seconds.
struct NodeScale {
  double sample_s = 1e-3;  // of a rank of speed 1
  double micro_s = 0;      // of a rank of speed 1
  std::int64_t model_bytes = 0, sample_bytes = 0;
};

// "A100x4:1.0/40G, P100x2:0.21/16G+5ms": NAMExCOUNT:SPEED[/MEMORY][+TIME], with commas between nodes. The x
// before the count is a small one, and that of "rtx3090" or "gtx1080" is none: without xCOUNT it is one rank.
// TIME is fixed_s. Error(usage) with a sentence for anything else.
std::vector<ClusterRank> parse_nodes(const std::string& text, const NodeScale& scale);

// More ranks than this are refused: a slip of the finger must not take all memory.
constexpr std::int64_t most_ranks = 1000000;

}  // namespace motley::balance
