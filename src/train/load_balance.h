// Brings what ranks measure to the balancer on rank 0, and its shares to the planner.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "balance/balancer.h"
#include "comm/communicator.h"
#include "core/json.h"
#include "train/options.h"
#include "train/planner.h"

namespace motley::train {

class LoadBalance {
 public:
  // `global_batch` says the usual batch of an epoch, `first_epoch` the one that the run begins in.
  LoadBalance(const BatchOptions& options, const comm::Communicator& world,
              std::function<std::int64_t(int epoch)> global_batch, int first_epoch);

  balance::PolicyKind policy() const { return policy_; }
  // Whether shares follow what is measured.
  bool measures() const;
  // For Planner::next: the shares of a window are decided when its first step is asked for. Rank 0 alone
  // asks.
  ShareRule rule();
  // Shares as weights, for validation; to be looked at on rank 0.
  std::vector<double> weights() const;

  // Shares are no larger than these, by rank, in the windows that are planned from here on; together the caps are no
  // less than any batch. Warns when that changes fixed proportions. Looked at on rank 0.
  void limit(const std::vector<std::int64_t>& caps, std::int64_t batch);

  // A step of this rank: its share and the seconds that it computed.
  void add(std::int64_t n, double compute_s) { times_.push_back({n, compute_s}); }
  // Brings the steps since the last call to rank 0. Collective; every rank has had the same number of them.
  void end_window();

  // What a continued run starts from, on rank 0.
  Json to_json() const { return balancer_->to_json(); }
  // Goes on with the shares of the run that is continued, on rank 0. False when they do not fit this run.
  bool restore(const Json& json, const std::string& where) { return balancer_->restore(json, where); }

 private:
  const comm::Communicator& world_;
  std::function<std::int64_t(int epoch)> global_batch_;
  balance::PolicyKind policy_;
  std::unique_ptr<balance::Balancer> balancer_;  // on rank 0
  std::vector<balance::StepTime> times_;
};

// --weights, or equal ones: how a batch is divided where nothing has been measured.
std::vector<double> share_weights(const BatchOptions& options, int ranks);

}  // namespace motley::train
