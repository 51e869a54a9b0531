// What a share costs a rank, learned from the steps it ran: t(n) = a + b n, fitted by recursive least
// squares.
//
// Forgetting is directional (Cao and Schwartz, "A directional forgetting algorithm based on the
// decomposition of the information matrix", Automatica 36, 2000): an observation discounts only what older
// ones said about its own share, so that a rank whose share has long not changed keeps its slope. Until the
// share has changed, a weak prior of a = 0 makes the fit the proportion t / n. Residuals are clipped
// (Huber), so that a page-cache miss or another user's burst counts little; several in a row on the same
// side are a change of speed, and then the model is scaled to them and trusts itself little.
#pragma once

#include <cstdint>
#include <vector>

#include "balance/solver.h"
#include "core/json.h"

namespace motley::balance {

// One step of one rank: its share and the seconds that it computed.
struct StepTime {
  std::int64_t n = 0;
  double seconds = 0;
};

class CostModel {
 public:
  // Takes in one step. Those with n = 0 say nothing and are passed over.
  void observe(const StepTime& step);
  // Takes this one step for the truth: of a rank that is looked at again after it had no share for long.
  void believe(const StepTime& step);

  bool known() const { return observations_ > 0; }
  // a >= 0 and b > 0, without a cap. Only when known(), as the next three.
  RankCost cost() const;
  // Seconds expected for a share of n >= 1.
  double seconds(std::int64_t n) const;
  // Standard deviation of that expectation (not of single steps) at the shares that were run of late, as a
  // part of their time: what noise alone can feign there. Large while there are few steps.
  double relative_error() const;
  // Standard deviation of single steps around the model.
  double noise_s() const { return noise_s_; }
  std::int64_t largest_seen() const { return largest_seen_; }

  Json to_json() const;
  // Throws Error(checkpoint) naming `where` for anything but what to_json() gives.
  static CostModel from_json(const Json& json, const std::string& where);

 private:
  bool has_changed(const StepTime& step, double expected_s);
  void scale_to(const StepTime& step, double ratio, double weight);
  void average(const StepTime& step, double weight);
  double prior() const;

  // The normal equations R [a b]' = y of the observations, without the prior, in units of one observation.
  // What the directional forgetting leaves in R may have any sign but is never indefinite.
  double r00_ = 0, r01_ = 0, r11_ = 0, y0_ = 0, y1_ = 0;
  // Of late: how many observations count, and the means of their shares and times.
  double weight_ = 0, mean_n_ = 0, mean_s_ = 0;
  double noise_s_ = 0;
  std::int64_t observations_ = 0, largest_seen_ = 0;
  // The latest steps in a row that lie far off on one side of the model.
  std::vector<StepTime> off_;
  bool off_above_ = false;
};

}  // namespace motley::balance
