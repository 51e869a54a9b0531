// Which share of the global batch every rank gets: the policies (design section 4). Lives on rank 0, or in
// the simulator: it is told what the steps of a window took and says what shares the next windows have.
// Pure: no MPI, no device, no clock.
//
//   sync     equal shares
//   static   fixed proportions
//   dp, edp  dynamic partition as published (Ye, Zhou, Shi, Sun, Lv, "DBS: dynamic batch size for distributed
//            deep neural network training", arXiv:2007.11831): once per epoch, new share proportional to
//            old share / mean batch time
//   auto     the min-max shares of the fitted cost models (solver.h, cost_model.h), re-solved at every window
//            and moved only when the predicted gain is worth it
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "balance/cost_model.h"
#include "balance/solver.h"
#include "core/json.h"

namespace motley::balance {

enum class PolicyKind : std::uint8_t { sync, fixed, dp, edp, automatic };

// "sync", "static", "dp", "edp", "auto"; Error(usage) for anything else.
PolicyKind parse_policy(const std::string& name);
const char* policy_name(PolicyKind kind);
// dp and edp.
bool is_published(PolicyKind kind);
// sync and static: shares are in fixed proportions, whatever is measured.
bool is_fixed(PolicyKind kind);

struct BalancerOptions {
  PolicyKind policy = PolicyKind::automatic;
  int ranks = 1;
  std::int64_t batch = 1;       // the usual global batch
  std::vector<double> weights;  // proportions to begin with (static: to stay with); empty: equal
  std::int64_t window = 16;     // steps of a window, once the run has settled
  // The rule of `auto`: shares begin to move when the predicted gain is at least this part of a step, and
  // go on moving until it is below the second. Both are raised to what noise could feign.
  double move_at = 0.01, settle_at = 0.002;
};

// What one rank did in a window, step by step.
using RankTimes = std::vector<StepTime>;

class Balancer {
 public:
  // Throws Error(usage) for weights that are none (shares.h).
  explicit Balancer(const BalancerOptions& options);

  // The shares of a step with `batch` slots; they sum to it. `step_in_window` counts from 0: in the first
  // two steps of some windows, a rank that has no share because it was slow gets one sample, to see how it
  // is now.
  std::vector<std::int64_t> shares(std::int64_t batch, std::int64_t step_in_window = 2) const;
  // Shares in the usual batch, as weights for whatever else is divided (validation).
  std::vector<double> weights() const;

  // From here on no rank's share is above its cap: at least 1 each, and together no less than any batch that is asked
  // for. Proportions that caps do not allow are kept among the ranks that are below theirs.
  void limit(const std::vector<std::int64_t>& caps);

  // Takes in what the steps of a window took, by rank.
  void observe(const std::vector<RankTimes>& by_rank);
  // Decides the shares of the next window, which is one of this epoch and has this usual batch.
  void plan(int epoch, std::int64_t batch);

  // Seconds of the slowest rank with the present shares, by the fitted models; 0 when nothing is known.
  double predicted_s() const;
  std::int64_t changes() const { return changes_; }
  const std::vector<CostModel>& models() const { return models_; }

  Json to_json() const;
  // Goes on from what to_json() gave, of any batch. False, and nothing happens, when that was of another
  // number of ranks or another policy. Throws Error(checkpoint) naming `where` when it is damaged.
  bool restore(const Json& json, const std::string& where);

 private:
  struct Prediction {
    double seconds = 0;  // of the slowest rank
    // Of that, by noise alone. That the slope of a share that never changed is not known is no reason to
    // wait: work that goes from a rank that takes longer to one that takes less never costs more than it is
    // taken to.
    double standard_error = 0;
  };
  void set_batch(std::int64_t batch);
  void keep_every_rank(std::vector<std::int64_t>& shares) const;
  std::vector<std::int64_t> divide(std::int64_t batch, const std::vector<double>& weights) const;
  std::vector<std::int64_t> scaled_to(std::int64_t batch, const std::vector<std::int64_t>& shares) const;
  void plan_published(int epoch);
  void plan_automatic();
  void plan_probe();
  std::vector<RankCost> costs() const;
  Prediction predict(const std::vector<RankCost>& costs, const std::vector<std::int64_t>& shares) const;
  void observe_rank(std::size_t rank, const RankTimes& times, double& change_cost_s);
  bool believe_probe(std::size_t rank, const RankTimes& times);

  BalancerOptions options_;
  std::vector<std::int64_t> shares_;  // of the usual batch
  std::vector<std::int64_t> caps_;    // empty: none
  std::vector<CostModel> models_;
  std::int64_t changes_ = 0;
  // auto
  bool moving_ = false;               // between the two thresholds of the hysteresis
  std::int64_t seen_ = 0;             // steps with the present shares that have been observed
  bool probing_ = false;              // in the window that is planned
  std::int64_t until_probe_ = -1;     // windows; negative: no rank is idle
  double change_cost_s_ = 0;          // what the first step after a change takes longer
  std::vector<std::int64_t> last_n_;  // the last share that each rank ran
  // dp, edp: of the epoch that is measured
  int epoch_ = 0;
  std::vector<double> epoch_seconds_;
  std::vector<std::int64_t> epoch_samples_;
};

// The shares in what Balancer::to_json() gave. Throws Error(checkpoint) naming `where` when they are none.
std::vector<std::int64_t> shares_of(const Json& json, const std::string& where);

// What a rank's mean gradient over its n samples is multiplied by before the sum over ranks (`active`:
// ranks with a share): edp n / batch, which is the mean over the batch (law 2, where every sample counts
// the same); dp 1 / active, the mean of means.
double published_gradient_weight(PolicyKind kind, std::int64_t n, std::int64_t batch, std::int64_t active);

// Steps of the index-th window (from 0) of a run that is to settle soon: windows are short at first, 2 2 4
// 4 8 8 ..., up to `longest`.
std::int64_t ramped_window(std::int64_t index, std::int64_t longest);

}  // namespace motley::balance
