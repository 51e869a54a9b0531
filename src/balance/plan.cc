#include "balance/plan.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/error.h"
#include "core/quantity.h"

namespace motley::balance {
namespace {

// A memory limit that costs more than this of the compute is what limits.
constexpr double memory_loss_that_counts = 0.05;
// Nodes times ranks of what is tried without a node: about a second of solving.
constexpr std::int64_t most_work = 5'000'000;

// The division of a step, with the memory limits or as if there were none.
struct Divided {
  std::vector<std::int64_t> shares, micro_batches;
  std::vector<double> compute_s;
  double slowest_s = 0;
};

Divided divide(const std::vector<ClusterRank>& ranks, std::int64_t max_sentences, std::int64_t batch,
               bool memory_counts) {
  Divided divided;
  std::vector<RankCost> costs;
  costs.reserve(ranks.size());
  divided.micro_batches.reserve(ranks.size());
  for (const ClusterRank& rank : ranks) {
    const std::int64_t micro = memory_counts ? largest_micro_batch(rank, max_sentences) : max_sentences;
    divided.micro_batches.push_back(micro);
    costs.push_back(affine_cost(rank, micro));
  }
  divided.shares = min_max_shares(batch, costs).shares;
  divided.compute_s.reserve(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    divided.compute_s.push_back(compute_seconds(ranks[r], divided.micro_batches[r], divided.shares[r]));
    divided.slowest_s = std::max(divided.slowest_s, divided.compute_s.back());
  }
  return divided;
}

bool can_run(const std::vector<ClusterRank>& ranks, std::int64_t max_sentences) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const ClusterRank& rank) { return largest_micro_batch(rank, max_sentences) > 0; });
}

// --- Nodes ------------------------------------------------------------------------------------------------

struct Kind {
  std::vector<std::size_t> ranks;  // of the first node of this description
  std::int64_t nodes = 0;
  double speed = 0;  // samples per second of one of them
};

// The kinds of nodes, in the order in which their first ranks come.
std::vector<Kind> kinds_of(const std::vector<ClusterRank>& ranks) {
  std::vector<std::vector<std::size_t>> nodes;
  std::unordered_map<std::string, std::size_t> index;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto [found, fresh] = index.try_emplace(ranks[r].node, nodes.size());
    if (fresh) nodes.emplace_back();
    nodes[found->second].push_back(r);
  }
  std::vector<Kind> kinds;
  std::map<std::vector<ClusterRank>, std::size_t> known;
  for (std::vector<std::size_t>& node : nodes) {
    std::vector<ClusterRank> key;
    Kind kind;
    for (const std::size_t r : node) {
      key.push_back(nameless(ranks[r]));
      kind.speed += 1 / ranks[r].sample_s;
    }
    std::sort(key.begin(), key.end());
    const auto [found, fresh] = known.try_emplace(std::move(key), kinds.size());
    if (fresh) {
      kind.ranks = std::move(node);
      kinds.push_back(std::move(kind));
    }
    ++kinds[found->second].nodes;
  }
  return kinds;
}

Cluster without(const Cluster& cluster, const std::vector<std::size_t>& removed) {
  Cluster rest;
  rest.network = cluster.network;
  rest.gradient_bytes = cluster.gradient_bytes;
  rest.max_sentences = cluster.max_sentences;
  rest.ranks.reserve(cluster.ranks.size());
  std::size_t next = 0;
  for (std::size_t r = 0; r < cluster.ranks.size(); ++r) {
    if (next < removed.size() && removed[next] == r) {
      ++next;
    } else {
      rest.ranks.push_back(cluster.ranks[r]);
    }
  }
  return rest;
}

void judge_nodes(const Cluster& cluster, Plan& plan) {
  std::vector<Kind> kinds = kinds_of(cluster.ranks);
  const auto most = static_cast<std::size_t>(
      std::max<std::int64_t>(1, most_work / static_cast<std::int64_t>(cluster.ranks.size())));
  if (kinds.size() > most) {
    // The question is about the slow ones.
    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const Kind& a, const Kind& b) { return a.speed < b.speed; });
    for (std::size_t i = most; i < kinds.size(); ++i) plan.nodes_left_out += kinds[i].nodes;
    kinds.resize(most);
  }
  for (const Kind& kind : kinds) {
    NodeVerdict verdict;
    verdict.node = cluster.ranks[kind.ranks.front()].node;
    verdict.nodes = kind.nodes;
    verdict.ranks = static_cast<std::int64_t>(kind.ranks.size());
    const Cluster rest = without(cluster, kind.ranks);
    if (can_run(rest.ranks, rest.max_sentences))
      verdict.without_s = estimate_step(rest, plan.global_batch).step_s();
    verdict.gain = verdict.without_s / plan.times.step_s() - 1;
    plan.nodes.push_back(verdict);
  }
}

// --- What is not known ------------------------------------------------------------------------------------

std::vector<std::string> unknown_parts(const Cluster& cluster) {
  const auto none = [&](auto member) {
    return std::all_of(cluster.ranks.begin(), cluster.ranks.end(),
                       [&](const ClusterRank& rank) { return rank.*member == 0; });
  };
  const bool limits = !none(&ClusterRank::memory_limit_bytes), samples = !none(&ClusterRank::sample_bytes);
  std::vector<std::string> parts;
  if (cluster.ranks.size() > 1) {
    if (!cluster.network) parts.emplace_back("the all-reduce (no network)");
    if (cluster.network && cluster.gradient_bytes == 0)
      parts.emplace_back("the all-reduce (no gradient bytes)");
    if (cluster.network && cluster.network->latency_s == 0) parts.emplace_back("the network's latency");
  }
  if (!limits) parts.emplace_back("memory");
  if (limits && !samples) parts.emplace_back("memory of the samples");
  if (limits && none(&ClusterRank::model_bytes)) parts.emplace_back("memory of the model");
  if (none(&ClusterRank::fixed_s)) parts.emplace_back("time per step (the optimizer)");
  if (none(&ClusterRank::micro_s)) parts.emplace_back("time per micro-batch");
  return parts;
}

// --- What limits ------------------------------------------------------------------------------------------

// "rank 3", "3 ranks"
std::string counted(std::int64_t ranks) {
  return ranks == 1 ? "1 rank" : fmt::format("{} ranks", ranks);
}

std::string memory_advice(const Plan& plan, double loss) {
  const auto unusable = std::count(plan.micro_batches.begin(), plan.micro_batches.end(), 0);
  if (unusable > 0) {
    return fmt::format(
        "too little memory on {} for a single sample: --recompute, --precision bf16 or shorter samples may "
        "make "
        "room, or leave them out",
        counted(unusable));
  }
  return fmt::format(
      "memory forces small micro-batches, which cost {:.0f} % of the compute: --recompute or --precision "
      "bf16 make "
      "room for larger ones",
      100 * loss);
}

// Where the step goes besides samples: the largest of four losses says what to do.
std::string compute_advice(const Cluster& cluster, const Plan& plan) {
  const auto slowest = static_cast<std::size_t>(
      std::max_element(plan.compute_s.begin(), plan.compute_s.end()) - plan.compute_s.begin());
  const ClusterRank& rank = cluster.ranks[slowest];
  const double compute = plan.compute_s[slowest], step = plan.times.step_s();
  const double samples = static_cast<double>(plan.shares[slowest]) * rank.sample_s;
  const double network = plan.times.network_s / step, fixed = rank.fixed_s / step;
  const double micro = (compute - rank.fixed_s - samples) / step;
  const double uneven = std::max(0.0, (samples - plan.ideal_s) / step);
  const double largest = std::max({network, fixed, micro, uneven});
  if (largest < 0.03)
    return "nearly all of the step goes into samples: only more or faster ranks make it shorter";
  const char* const spread = "a larger --global-batch spreads it over more samples";
  if (largest == network)
    return fmt::format("but {:.0f} % of the step is the all-reduce: {}", 100 * network, spread);
  if (largest == fixed) {
    return fmt::format("{:.0f} % of the step is the same for every batch (the optimizer): {}", 100 * fixed,
                       spread);
  }
  if (largest == micro) {
    return fmt::format(
        "{:.0f} % of the step is paid per micro-batch: a larger --max-sentences makes fewer of them",
        100 * micro);
  }
  return fmt::format(
      "shares are whole samples, and {} of them are too few to divide evenly among these ranks: a larger "
      "--global-batch divides better",
      plan.global_batch);
}

void find_limit(const Cluster& cluster, Plan& plan) {
  const StepEstimate& times = plan.times;
  if (times.network_s > times.compute_s) {
    plan.limit = Limit::network;
    plan.advice = fmt::format(
        "summing the gradients takes {} of {}: a larger --global-batch needs it less often per sample, and "
        "fewer or "
        "better connected nodes make it shorter",
        seconds_text(times.network_s), seconds_text(times.step_s()));
    return;
  }
  const double unlimited = divide(cluster.ranks, cluster.max_sentences, plan.global_batch, false).slowest_s;
  const double loss = 1 - unlimited / times.compute_s;
  const bool unusable = std::count(plan.micro_batches.begin(), plan.micro_batches.end(), 0) > 0;
  if (unusable || times.compute_s > (1 + memory_loss_that_counts) * unlimited) {
    plan.limit = Limit::memory;
    plan.advice = memory_advice(plan, loss);
    return;
  }
  plan.limit = Limit::compute;
  plan.advice = compute_advice(cluster, plan);
}

}  // namespace

const char* limit_name(Limit limit) {
  switch (limit) {
    case Limit::memory:
      return "memory";
    case Limit::network:
      return "network";
    default:
      return "compute";
  }
}

StepEstimate estimate_step(const Cluster& cluster, std::int64_t global_batch) {
  return {divide(cluster.ranks, cluster.max_sentences, global_batch, true).slowest_s,
          all_reduce_seconds(cluster)};
}

Plan make_plan(const Cluster& cluster, std::int64_t global_batch) {
  if (global_batch < 1) fail(ExitCode::usage, "--global-batch is {}; expected at least 1", global_batch);
  if (!can_run(cluster.ranks, cluster.max_sentences))
    fail(ExitCode::usage, "no rank has the memory for the model and a single sample; expected one that has");
  Plan plan;
  plan.global_batch = global_batch;
  Divided divided = divide(cluster.ranks, cluster.max_sentences, global_batch, true);
  plan.times = {divided.slowest_s, all_reduce_seconds(cluster)};
  plan.shares = std::move(divided.shares);
  plan.micro_batches = std::move(divided.micro_batches);
  plan.compute_s = std::move(divided.compute_s);
  double speed = 0;
  for (const ClusterRank& rank : cluster.ranks) speed += 1 / rank.sample_s;
  plan.ideal_s = static_cast<double>(global_batch) / speed;
  plan.efficiency = plan.ideal_s / plan.times.step_s();
  plan.left_out = unknown_parts(cluster);
  find_limit(cluster, plan);
  judge_nodes(cluster, plan);
  return plan;
}

}  // namespace motley::balance
