#include "train/load_balance.h"

#include <fmt/ranges.h>

#include <cmath>

#include "balance/shares.h"
#include "core/log.h"

namespace motley::train {

std::vector<double> share_weights(const BatchOptions& options, int ranks) {
  return options.weights.empty() ? std::vector<double>(static_cast<std::size_t>(ranks), 1.0)
                                 : balance::parse_weights(options.weights, ranks);
}

LoadBalance::LoadBalance(const BatchOptions& options, const comm::Communicator& world,
                         std::function<std::int64_t(int epoch)> global_batch, int first_epoch)
    : world_(world), global_batch_(std::move(global_batch)), policy_(balance::parse_policy(options.policy)) {
  if (world.rank() != 0) return;
  balance::BalancerOptions how;
  how.policy = policy_;
  how.ranks = world.size();
  how.batch = global_batch_(first_epoch);
  how.weights = share_weights(options, world.size());
  how.window = options.window;
  balancer_ = std::make_unique<balance::Balancer>(how);
}

bool LoadBalance::measures() const {
  return !balance::is_fixed(policy_) && world_.size() > 1;
}

ShareRule LoadBalance::rule() {
  return [this](const StepPlan& step, std::int64_t step_in_window) {
    if (step_in_window == 0) balancer_->plan(step.epoch, global_batch_(step.epoch));
    return balancer_->shares(step.batch, step_in_window);
  };
}

std::vector<double> LoadBalance::weights() const {
  if (balancer_ == nullptr) return std::vector<double>(static_cast<std::size_t>(world_.size()), 1.0);
  return balancer_->weights();
}

void LoadBalance::limit(const std::vector<std::int64_t>& caps, std::int64_t batch) {
  if (balancer_ == nullptr) return;
  const std::vector<std::int64_t> before = balancer_->shares(batch);
  balancer_->limit(caps);
  const std::vector<std::int64_t> after = balancer_->shares(batch);
  if (balance::is_fixed(policy_) && before != after)
    log::warn(
        "a share is run at once, so shares are {}, as far as memory and --max-sentences allow, and not {}",
        fmt::join(after, ":"), fmt::join(before, ":"));
}

void LoadBalance::end_window() {
  if (measures()) {
    std::vector<double> mine;
    for (const balance::StepTime& step : times_) {
      mine.push_back(static_cast<double>(step.n));
      mine.push_back(step.seconds);
    }
    const std::vector<double> all = world_.gather(mine, 0, "the times of a window");
    if (world_.rank() == 0) {
      std::vector<balance::RankTimes> by_rank(static_cast<std::size_t>(world_.size()));
      for (std::size_t r = 0; r < by_rank.size(); ++r) {
        for (std::size_t i = 0; i < mine.size(); i += 2) {
          const double* step = &all[r * mine.size() + i];
          by_rank[r].push_back({std::llround(step[0]), step[1]});
        }
      }
      balancer_->observe(by_rank);
    }
  }
  times_.clear();
}

}  // namespace motley::train
