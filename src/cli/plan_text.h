// How `motley plan` shows what it found.
#pragma once

#include <string>
#include <vector>

#include "balance/balancer.h"
#include "balance/plan.h"
#include "core/json.h"

namespace motley::cli {

// What a policy comes to in the simulator.
struct PolicyResult {
  balance::PolicyKind policy = balance::PolicyKind::automatic;
  double settled_s = 0;
  std::int64_t steps_to_settle = 0;
  std::int64_t changes = 0;
  std::vector<std::int64_t> shares;  // of the last step
};

struct PlanReport {
  const balance::Cluster& cluster;
  balance::Plan plan;
  std::string batch_source;  // where the global batch comes from, when it was not given
  std::vector<std::string> remarks;
  std::int64_t steps = 0;  // of the simulation
  std::vector<PolicyResult> policies;
};

std::string plan_text(const PlanReport& report);
Json plan_json(const PlanReport& report);

}  // namespace motley::cli
