#include "cli/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/table.h"
#include "core/quantity.h"

namespace motley::cli {
namespace {

using balance::ClusterRank;
using balance::NodeVerdict;
using balance::Plan;

// Lines of a table before the rest is only counted.
constexpr std::size_t most_lines = 24;

// Ranks of one description.
struct RankGroup {
  const ClusterRank* rank = nullptr;
  std::int64_t first = 0, last = 0, count = 0;  // ranks
  std::int64_t more_nodes = 0;                  // besides the one of the first rank
  std::int64_t micro_batch = 0, least = 0, most = 0;
  double compute_s = 0;
  const std::string* last_node = nullptr;
};

std::vector<RankGroup> group(const PlanReport& report) {
  std::vector<RankGroup> groups;
  std::map<ClusterRank, std::size_t> known;
  for (std::size_t r = 0; r < report.cluster.ranks.size(); ++r) {
    const ClusterRank& rank = report.cluster.ranks[r];
    const auto [found, fresh] = known.try_emplace(nameless(rank), groups.size());
    const auto number = static_cast<std::int64_t>(r);
    const std::int64_t share = report.plan.shares[r];
    if (fresh) {
      groups.push_back({.rank = &rank,
                        .first = number,
                        .micro_batch = report.plan.micro_batches[r],
                        .least = share,
                        .last_node = &rank.node});
    }
    RankGroup& members = groups[found->second];
    if (*members.last_node != rank.node) ++members.more_nodes;
    members.last_node = &rank.node;
    members.last = number;
    ++members.count;
    members.least = std::min(members.least, share);
    members.most = std::max(members.most, share);
    members.compute_s = std::max(members.compute_s, report.plan.compute_s[r]);
  }
  return groups;
}

std::string ranks_text(const RankGroup& members) {
  if (members.count == 1) return std::to_string(members.first);
  if (members.last - members.first + 1 == members.count)
    return fmt::format("{}-{}", members.first, members.last);
  return fmt::format("{} ranks", members.count);
}

std::string rank_table(const PlanReport& report) {
  const std::vector<RankGroup> groups = group(report);
  std::vector<std::vector<std::string>> rows = {
      {"node", "ranks", "samples/s", "micro-batch", "share", "compute"}};
  for (const RankGroup& members : groups) {
    if (rows.size() > most_lines) break;
    const std::string& node = members.rank->node;
    const std::string share = members.least == members.most
                                  ? std::to_string(members.most)
                                  : fmt::format("{}-{}", members.least, members.most);
    rows.push_back({members.more_nodes > 0 ? fmt::format("{} and {} more", node, members.more_nodes) : node,
                    ranks_text(members), fmt::format("{:.4g}", 1 / members.rank->sample_s),
                    members.micro_batch == 0 ? "none fits" : std::to_string(members.micro_batch), share,
                    seconds_text(members.compute_s)});
  }
  std::string text = table(rows);
  if (groups.size() > most_lines)
    text += fmt::format("... and {} more; --log-format json lists them\n", groups.size() - most_lines);
  return text;
}

const char* verdict_word(const NodeVerdict& node) {
  if (std::isinf(node.without_s)) return "needed";
  if (node.gain > balance::gain_that_counts) return "faster with it";
  return node.gain < -balance::gain_that_counts ? "faster without it" : "no difference";
}

std::string verdict_text(const NodeVerdict& node) {
  const std::string word = verdict_word(node);
  if (std::isinf(node.without_s)) return word + ": the others cannot hold the model, or there are none";
  return fmt::format("{} ({:+.1f} %)", word, 100 * node.gain);
}

std::string node_table(const Plan& plan) {
  std::vector<std::vector<std::string>> rows = {{"node", "step without it", ""}};
  for (const NodeVerdict& node : plan.nodes) {
    if (rows.size() > most_lines) break;
    std::string name = node.node;
    if (node.ranks > 1) name += fmt::format(", {} ranks", node.ranks);
    if (node.nodes > 1) name += fmt::format(" (one of {} such)", node.nodes);
    rows.push_back(
        {name, std::isinf(node.without_s) ? "-" : seconds_text(node.without_s), verdict_text(node)});
  }
  std::string text = table(rows, "lrl");
  std::size_t more = static_cast<std::size_t>(plan.nodes_left_out);
  if (plan.nodes.size() > most_lines) more += plan.nodes.size() - most_lines;
  if (more > 0) text += fmt::format("... and {} more\n", more);
  return text;
}

std::string policy_table(const PlanReport& report) {
  std::vector<std::vector<std::string>> rows = {{"policy", "step", "efficiency", "settled after", "moves"}};
  for (const PolicyResult& result : report.policies) {
    rows.push_back({policy_name(result.policy), seconds_text(result.settled_s),
                    fmt::format("{:.0f} %", 100 * report.plan.ideal_s / result.settled_s),
                    fmt::format("{} steps", result.steps_to_settle), std::to_string(result.changes)});
  }
  return fmt::format("\npolicies, simulated over {} steps\n{}", report.steps, table(rows));
}

}  // namespace

std::string plan_text(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string text = fmt::format("{} rank(s), global batch {}{}\n\n{}\n", report.cluster.ranks.size(),
                                 plan.global_batch, report.batch_source, rank_table(report));
  const bool known = plan.times.network_s > 0 || report.cluster.ranks.size() == 1;
  text += fmt::format(
      "step         {} = compute {} + all-reduce {}\n", seconds_text(plan.times.step_s()),
      seconds_text(plan.times.compute_s),
      known ? seconds_text(plan.times.network_s) + " (as if they did not overlap)" : "of unknown length");
  text += fmt::format("ideal        {}: the batch over the sum of all speeds\n", seconds_text(plan.ideal_s));
  text += fmt::format("efficiency   {:.1f} %\n", 100 * plan.efficiency);
  text += fmt::format("limited by   {}: {}\n", limit_name(plan.limit), plan.advice);
  if (!plan.left_out.empty())
    text += fmt::format("left out     since nothing says it: {}\n", fmt::join(plan.left_out, "; "));
  for (const std::string& remark : report.remarks) text += fmt::format("note         {}\n", remark);
  text += fmt::format("\n{}", node_table(plan));
  if (!report.policies.empty()) text += policy_table(report);
  return text;
}

Json plan_json(const PlanReport& report) {
  const Plan& plan = report.plan;
  Json ranks = Json::array(), nodes = Json::array(), policies = Json::array();
  for (const RankGroup& members : group(report)) {
    ranks.push_back({{"node", members.rank->node},
                     {"device", members.rank->device},
                     {"first_rank", members.first},
                     {"count", members.count},
                     {"samples_per_s", 1 / members.rank->sample_s},
                     {"micro_batch", members.micro_batch},
                     {"share_min", members.least},
                     {"share_max", members.most},
                     {"compute_s", members.compute_s}});
  }
  for (const NodeVerdict& node : plan.nodes) {
    Json line = {
        {"node", node.node}, {"nodes", node.nodes}, {"ranks", node.ranks}, {"verdict", verdict_word(node)}};
    const bool needed = std::isinf(node.without_s);
    line["step_without_s"] = needed ? Json() : Json(node.without_s);
    line["gain"] = needed ? Json() : Json(node.gain);
    nodes.push_back(std::move(line));
  }
  for (const PolicyResult& result : report.policies) {
    policies.push_back({{"policy", policy_name(result.policy)},
                        {"step_s", result.settled_s},
                        {"efficiency", plan.ideal_s / result.settled_s},
                        {"steps_to_settle", result.steps_to_settle},
                        {"changes", result.changes},
                        {"shares", result.shares}});
  }
  return {{"global_batch", plan.global_batch},
          {"shares", plan.shares},
          {"ranks", std::move(ranks)},
          {"step_s", plan.times.step_s()},
          {"compute_s", plan.times.compute_s},
          {"network_s", plan.times.network_s},
          {"ideal_s", plan.ideal_s},
          {"efficiency", plan.efficiency},
          {"limit", limit_name(plan.limit)},
          {"advice", plan.advice},
          {"left_out", plan.left_out},
          {"remarks", report.remarks},
          {"nodes", std::move(nodes)},
          {"nodes_left_out", plan.nodes_left_out},
          {"simulated_steps", report.policies.empty() ? 0 : report.steps},
          {"policies", std::move(policies)}};
}

}  // namespace motley::cli
