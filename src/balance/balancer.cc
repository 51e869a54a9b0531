#include "balance/balancer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "balance/shares.h"
#include "core/error.h"

namespace motley::balance {
namespace {

struct NamedPolicy {
  const char* name;
  PolicyKind kind;
};
constexpr std::array policies = {NamedPolicy{"sync", PolicyKind::sync},
                                 NamedPolicy{"static", PolicyKind::fixed}, NamedPolicy{"dp", PolicyKind::dp},
                                 NamedPolicy{"edp", PolicyKind::edp},
                                 NamedPolicy{"auto", PolicyKind::automatic}};

constexpr std::int64_t growth = 4;          // a share is at most this many times the largest that was tried
constexpr std::int64_t windows_to_pay = 4;  // within which a change of shares has to pay for itself
constexpr double probing_cost = 0.01;       // part of the time that looking at idle ranks may cost
constexpr std::int64_t shortest_probe_interval = 8, longest_probe_interval = 1024;  // windows
constexpr double faster_than_thought = 0.8;  // an idle rank is believed when it takes less than this part

// A step waits for the last of its ranks, so a rank whose times scatter is planned with some of the scatter
// on top. Where only one of R ranks scatters, the best division lets it be the last in one step of R (the
// newsvendor rule), and the normal quantile of 1 - 1 / R is a fair guess for any distribution; where all
// scatter alike it changes nothing. Held down for many ranks, whose estimates of the scatter differ by
// chance.
double scatter_on_top(std::size_t ranks) {
  constexpr double most = 1.25;
  if (ranks < 3) return 0;
  // Tukey's approximation of the normal quantile.
  const double p = 1 - 1 / static_cast<double>(ranks);
  return std::min(most, (std::pow(p, 0.135) - std::pow(1 - p, 0.135)) / 0.1975);
}

// How many standard errors a gain must have. The largest of R equally noisy predictions lies about sqrt(2
// ln R) of them too high by chance; where the noise is that of a few ranks, those are R (the participation
// ratio).
double errors_to_believe(const std::vector<double>& errors_s) {
  double sum = 0, squares = 0;
  for (const double error_s : errors_s) {
    sum += error_s;
    squares += error_s * error_s;
  }
  const double noisy = squares > 0 ? std::max(1.0, sum * sum / squares) : 1;
  return 1 + std::sqrt(2 * std::log(noisy));
}

std::vector<double> as_weights(const std::vector<std::int64_t>& shares) {
  return {shares.begin(), shares.end()};
}

bool any_known(const std::vector<CostModel>& models) {
  return std::any_of(models.begin(), models.end(), [](const CostModel& model) { return model.known(); });
}

// Takes one sample of the largest shares, the lower rank's of equal ones, for each of these ranks, which
// have none; nothing is taken of a share of one.
void give_one_sample_to(const std::vector<std::size_t>& ranks, std::vector<std::int64_t>& shares) {
  if (ranks.empty()) return;
  const auto smaller = [&](std::size_t a, std::size_t b) {
    return shares[a] != shares[b] ? shares[a] < shares[b] : a > b;
  };
  std::vector<std::size_t> heap(shares.size());
  std::iota(heap.begin(), heap.end(), std::size_t{0});
  std::make_heap(heap.begin(), heap.end(), smaller);
  std::size_t given = 0;
  while (given < ranks.size() && shares[heap.front()] >= 2) {
    std::pop_heap(heap.begin(), heap.end(), smaller);
    --shares[heap.back()];
    std::push_heap(heap.begin(), heap.end(), smaller);
    ++given;
  }
  for (std::size_t i = 0; i < given; ++i) shares[ranks[i]] = 1;
}

}  // namespace

PolicyKind parse_policy(const std::string& name) {
  for (const NamedPolicy& policy : policies) {
    if (name == policy.name) return policy.kind;
  }
  fail(ExitCode::usage, "--policy is \"{}\"; expected one of: sync, static, dp, edp, auto", name);
}

const char* policy_name(PolicyKind kind) {
  for (const NamedPolicy& policy : policies) {
    if (kind == policy.kind) return policy.name;
  }
  return "";
}

bool is_published(PolicyKind kind) {
  return kind == PolicyKind::dp || kind == PolicyKind::edp;
}

bool is_fixed(PolicyKind kind) {
  return kind == PolicyKind::sync || kind == PolicyKind::fixed;
}

double published_gradient_weight(PolicyKind kind, std::int64_t n, std::int64_t batch, std::int64_t active) {
  MOTLEY_CHECK(batch > 0 && active > 0);
  if (n == 0) return 0;
  return kind == PolicyKind::dp ? 1 / static_cast<double>(active)
                                : static_cast<double>(n) / static_cast<double>(batch);
}

std::int64_t ramped_window(std::int64_t index, std::int64_t longest) {
  constexpr std::int64_t first = 2, most_doublings = 40;
  return std::min(longest, first << std::min(index / 2, most_doublings));
}

Balancer::Balancer(const BalancerOptions& options) : options_(options) {
  MOTLEY_CHECK(options.ranks >= 1 && options.batch >= 0);
  const auto ranks = static_cast<std::size_t>(options.ranks);
  if (options_.weights.empty()) options_.weights.assign(ranks, 1.0);
  MOTLEY_CHECK(options_.weights.size() == ranks);
  shares_ = proportional_shares(options.batch, options_.weights);
  models_.resize(ranks);
  last_n_.assign(ranks, 0);
  epoch_seconds_.assign(ranks, 0);
  epoch_samples_.assign(ranks, 0);
}

std::vector<std::int64_t> Balancer::shares(std::int64_t batch, std::int64_t step_in_window) const {
  // Fixed proportions are those of the weights, not of the shares that were rounded from them.
  if (is_fixed(options_.policy)) return divide(batch, options_.weights);
  std::vector<std::int64_t> shares = batch == options_.batch ? shares_ : divide(batch, weights());
  if (!probing_ || step_in_window >= 2) return shares;
  std::vector<std::size_t> idle;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (shares_[r] == 0) idle.push_back(r);
  }
  give_one_sample_to(idle, shares);
  return shares;
}

std::vector<double> Balancer::weights() const {
  return is_fixed(options_.policy) ? options_.weights : as_weights(shares_);
}

std::vector<std::int64_t> Balancer::divide(std::int64_t batch, const std::vector<double>& weights) const {
  return caps_.empty() ? proportional_shares(batch, weights) : capped_shares(batch, weights, caps_);
}

void Balancer::limit(const std::vector<std::int64_t>& caps) {
  MOTLEY_CHECK(caps.size() == shares_.size());
  caps_ = caps;
  shares_ = divide(options_.batch, as_weights(shares_));
}

void Balancer::observe(const std::vector<RankTimes>& by_rank) {
  MOTLEY_CHECK(by_rank.size() == models_.size());
  double change_cost_s = -1;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    if (options_.policy == PolicyKind::automatic) observe_rank(r, by_rank[r], change_cost_s);
    for (const StepTime& step : by_rank[r]) {
      if (step.n == 0) continue;
      epoch_seconds_[r] += step.seconds;
      epoch_samples_[r] += step.n;
    }
  }
  if (change_cost_s >= 0) change_cost_s_ += (change_cost_s - change_cost_s_) / 2;
  const bool present = std::equal(
      shares_.begin(), shares_.end(), by_rank.begin(),
      [](std::int64_t n, const RankTimes& times) { return !times.empty() && times.front().n == n; });
  if (present) seen_ += static_cast<std::int64_t>(by_rank.front().size());
}

// The first step of a share that differs from the last one is no measure of the others: memory is touched
// for the first time and kernels are prepared. It is one of what a change costs.
void Balancer::observe_rank(std::size_t rank, const RankTimes& times, double& change_cost_s) {
  if (believe_probe(rank, times)) return;
  CostModel& model = models_[rank];
  for (std::size_t i = 0; i < times.size(); ++i) {
    const StepTime& step = times[i];
    if (step.n == 0) continue;
    const bool first = step.n != last_n_[rank];
    const bool repeated = i + 1 < times.size() && times[i + 1].n == step.n;
    last_n_[rank] = step.n;
    if (first && repeated) {
      if (model.known()) change_cost_s = std::max(change_cost_s, step.seconds - model.seconds(step.n));
    } else {
      model.observe(step);
    }
  }
}

// A rank without a share that was looked at again is believed when it is faster by more than it scatters:
// waiting for several looks, as for other changes, would take long. False when this was no such look, or
// found nothing new.
bool Balancer::believe_probe(std::size_t rank, const RankTimes& times) {
  CostModel& model = models_[rank];
  if (shares_[rank] != 0 || !model.known() || times.size() <= 2 || times.back().n != 0) return false;
  double looks = 0, seconds = 0;
  for (const StepTime& step : times) {
    if (step.n == 0) continue;
    if (step.n != 1) return false;
    ++looks;
    seconds += step.seconds;
  }
  if (looks == 0) return false;
  const double expected_s = model.seconds(1), mean_s = seconds / looks;
  const double doubt_s = 2 * model.noise_s() / std::sqrt(looks);
  if (mean_s >= faster_than_thought * expected_s || mean_s >= expected_s - doubt_s) return false;
  model.believe({1, mean_s});
  last_n_[rank] = 0;
  return true;
}

void Balancer::set_batch(std::int64_t batch) {
  if (batch == options_.batch) return;
  shares_ = scaled_to(batch, shares_);
  options_.batch = batch;
}

// The published policies leave no rank out for good: one that has no share is never measured again.
void Balancer::keep_every_rank(std::vector<std::int64_t>& shares) const {
  std::vector<std::size_t> dropped;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (shares[r] == 0 && options_.weights[r] > 0) dropped.push_back(r);
  }
  give_one_sample_to(dropped, shares);
}

// Shares of another batch in the same proportions.
std::vector<std::int64_t> Balancer::scaled_to(std::int64_t batch,
                                              const std::vector<std::int64_t>& shares) const {
  std::vector<std::int64_t> scaled = divide(batch, as_weights(shares));
  if (is_published(options_.policy)) keep_every_rank(scaled);
  return scaled;
}

void Balancer::plan(int epoch, std::int64_t batch) {
  set_batch(batch);
  if (is_published(options_.policy)) plan_published(epoch);
  if (options_.policy == PolicyKind::automatic) plan_automatic();
}

// New share proportional to old share / mean batch time, from what the epoch before was measured to take.
// The last window of that epoch is still running when the next epoch is planned; it is counted to the next
// measurement.
void Balancer::plan_published(int epoch) {
  const bool new_epoch = epoch != epoch_;
  const bool measured =
      std::any_of(epoch_samples_.begin(), epoch_samples_.end(), [](auto samples) { return samples > 0; });
  if (!new_epoch || !measured) {
    if (epoch_ == 0) epoch_ = epoch;
    return;
  }
  epoch_ = epoch;
  std::vector<double> speeds(shares_.size(), 0.0);
  for (std::size_t r = 0; r < speeds.size(); ++r) {
    if (epoch_seconds_[r] > 0) speeds[r] = static_cast<double>(epoch_samples_[r]) / epoch_seconds_[r];
  }
  std::vector<std::int64_t> shares = divide(options_.batch, speeds);
  keep_every_rank(shares);
  if (shares != shares_) ++changes_;
  shares_ = std::move(shares);
  std::fill(epoch_seconds_.begin(), epoch_seconds_.end(), 0.0);
  std::fill(epoch_samples_.begin(), epoch_samples_.end(), 0);
}

// Of every rank, with the cap that no share grows too far beyond what was tried. A rank of which nothing is
// known yet is taken to be like the mean of the others.
std::vector<RankCost> Balancer::costs() const {
  const double on_top = scatter_on_top(models_.size());
  RankCost mean;
  double known = 0;
  std::vector<RankCost> costs(models_.size());
  for (std::size_t r = 0; r < models_.size(); ++r) {
    if (!models_[r].known()) continue;
    costs[r] = models_[r].cost();
    costs[r].fixed_s += on_top * models_[r].noise_s();
    mean.fixed_s += costs[r].fixed_s;
    mean.sample_s += costs[r].sample_s;
    ++known;
  }
  for (std::size_t r = 0; r < models_.size(); ++r) {
    if (!models_[r].known()) costs[r] = {mean.fixed_s / known, mean.sample_s / known};
    costs[r].cap = std::max(growth * models_[r].largest_seen(), std::int64_t{1});
    if (!caps_.empty()) costs[r].cap = std::min(costs[r].cap, caps_[r]);
    costs[r].cap = std::max(costs[r].cap, shares_[r]);
  }
  return costs;
}

Balancer::Prediction Balancer::predict(const std::vector<RankCost>& costs,
                                       const std::vector<std::int64_t>& shares) const {
  Prediction prediction;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    const double seconds = seconds_for(costs[r], shares[r]);
    if (seconds <= prediction.seconds) continue;
    prediction.seconds = seconds;
    prediction.standard_error = models_[r].known() ? models_[r].relative_error() * seconds : 0;
  }
  return prediction;
}

void Balancer::plan_automatic() {
  if (!any_known(models_) || options_.batch == 0) return;
  const std::vector<RankCost> costs = this->costs();
  Division division = min_max_shares(options_.batch, costs);
  const Prediction now = predict(costs, shares_), then = predict(costs, division.shares);
  const double gain_s = now.seconds - then.seconds;
  std::vector<double> errors_s;
  for (std::size_t r = 0; r < models_.size(); ++r) {
    if (models_[r].known())
      errors_s.push_back(models_[r].relative_error() * seconds_for(costs[r], shares_[r]));
  }
  const double doubt_s = errors_to_believe(errors_s) * std::hypot(now.standard_error, then.standard_error);
  const double threshold_s = moving_ ? std::max(options_.settle_at * now.seconds, doubt_s / 4)
                                     : std::max(options_.move_at * now.seconds, doubt_s);
  const double pays_s = gain_s * static_cast<double>(windows_to_pay * options_.window);
  if (gain_s >= threshold_s && pays_s > change_cost_s_ && division.shares != shares_) {
    ++changes_;
    shares_ = std::move(division.shares);
    moving_ = true;
    seen_ = 0;  // a window is planned one ahead: the next plan knows nothing of them yet
  } else if (gain_s < options_.settle_at * now.seconds ? seen_ > 0 : seen_ >= options_.window) {
    moving_ = false;
  }
  plan_probe();
}

// Ranks without a share are looked at again so often that it costs a small part of the time.
void Balancer::plan_probe() {
  probing_ = false;
  double slowest_idle_s = 0;
  for (std::size_t r = 0; r < shares_.size(); ++r) {
    if (shares_[r] == 0 && models_[r].known())
      slowest_idle_s = std::max(slowest_idle_s, models_[r].seconds(1));
  }
  const bool idle = std::any_of(shares_.begin(), shares_.end(), [](std::int64_t n) { return n == 0; });
  if (!idle) {
    until_probe_ = -1;
    return;
  }
  if (until_probe_ > 0 && --until_probe_ > 0) return;
  probing_ = until_probe_ == 0;  // not at once
  const double step_s = predict(costs(), shares_).seconds;
  const double loss = 2 * std::max(0.0, slowest_idle_s - step_s) / step_s;  // steps, two of them
  const double windows = loss / (probing_cost * static_cast<double>(options_.window));
  until_probe_ = std::clamp(static_cast<std::int64_t>(std::min(std::ceil(windows), 1e6)),
                            shortest_probe_interval, longest_probe_interval);
}

double Balancer::predicted_s() const {
  return any_known(models_) ? predict(costs(), shares_).seconds : 0;
}

Json Balancer::to_json() const {
  Json json = {{"policy", policy_name(options_.policy)}, {"shares", shares_}, {"epoch", epoch_}};
  if (options_.policy == PolicyKind::automatic) {
    json["change_cost_s"] = change_cost_s_;
    json["models"] = Json::array();
    for (const CostModel& model : models_) json["models"].push_back(model.to_json());
  }
  return json;
}

std::vector<std::int64_t> shares_of(const Json& json, const std::string& where) {
  const auto shares = json_get<std::vector<std::int64_t>>(json, "shares", where, ExitCode::checkpoint);
  const bool sound = std::all_of(shares.begin(), shares.end(),
                                 [](std::int64_t n) { return n >= 0 && n <= largest_batch; }) &&
                     std::any_of(shares.begin(), shares.end(), [](std::int64_t n) { return n > 0; });
  if (!sound) {
    fail(ExitCode::checkpoint, "{}: \"shares\" is {}; expected numbers of at least 0, not all 0", where,
         Json(shares).dump());
  }
  return shares;
}

bool Balancer::restore(const Json& json, const std::string& where) {
  constexpr ExitCode code = ExitCode::checkpoint;
  if (json_get<std::string>(json, "policy", where, code) != policy_name(options_.policy)) return false;
  const std::vector<std::int64_t> shares = shares_of(json, where);
  if (shares.size() != shares_.size()) return false;
  std::vector<CostModel> models(models_.size());
  double change_cost_s = 0;
  if (options_.policy == PolicyKind::automatic) {
    const Json list = json_get<Json>(json, "models", where, code);
    if (!list.is_array() || list.size() != models.size())
      fail(code, "{}: \"models\" is not a list of {} cost models", where, models.size());
    for (std::size_t r = 0; r < models.size(); ++r) models[r] = CostModel::from_json(list[r], where);
    change_cost_s = json_get<double>(json, "change_cost_s", where, code);
    if (!(change_cost_s >= 0 && change_cost_s < 1e100))
      fail(code, "{}: \"change_cost_s\" is {}; expected seconds", where, change_cost_s);
  }
  epoch_ = json_get<int>(json, "epoch", where, code);
  shares_ = scaled_to(options_.batch, shares);
  models_ = std::move(models);
  change_cost_s_ = change_cost_s;
  return true;
}

}  // namespace motley::balance
