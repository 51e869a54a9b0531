#include "balance/cost_model.h"

#include <algorithm>
#include <cmath>

#include "balance/shares.h"
#include "core/error.h"

namespace motley::balance {
namespace {

constexpr double forgetting = 0.98;            // of one observation: a memory of 50 steps
constexpr double noise_memory = 0.05;          // of one observation, once there are 20
constexpr double first_noise = 0.02;           // of the first time, before a second is known
constexpr double clip = 3;                     // residuals count up to this many standard deviations
constexpr double far_off = 4;                  // from here on they may be a change,
constexpr double far_off_relative = 0.03;      // if they are also this part of the time,
constexpr std::size_t in_a_row = 3;            // and as many come in a row
constexpr double least_slope = 0.02;           // of the time per sample: more samples never cost nothing
constexpr double likely_fixed_part = 0.5;      // of the time, standard deviation of the prior
constexpr double memory_of_fixed_part = 0.05;  // after a change, in units of one observation
constexpr double weakest_prior = 1e-4, strongest_prior = 1e-2;

}  // namespace

// The weight of the prior a = 0 in units of one observation: variance of an observation over variance of a.
double CostModel::prior() const {
  const double ratio = noise_s_ / (likely_fixed_part * mean_s_);
  return std::clamp(ratio * ratio, weakest_prior, strongest_prior);
}

RankCost CostModel::cost() const {
  MOTLEY_CHECK(known());
  const double r00 = r00_ + prior();
  const double determinant = r00 * r11_ - r01_ * r01_;
  RankCost cost;
  cost.fixed_s = (y0_ * r11_ - y1_ * r01_) / determinant;
  cost.sample_s = (y1_ * r00 - y0_ * r01_) / determinant;
  // At the least and the largest slope that make sense, the line goes through what was run of late.
  const double largest = mean_s_ / mean_n_, least = least_slope * largest;
  if (!(cost.sample_s >= least)) {
    cost = {mean_s_ - least * mean_n_, least};
  } else if (!(cost.fixed_s >= 0)) {
    cost = {0, largest};
  }
  return cost;
}

double CostModel::seconds(std::int64_t n) const {
  return seconds_for(cost(), n);
}

double CostModel::relative_error() const {
  constexpr double few = 3;  // steps, that hardly tell the noise either
  const double inflation = 1 + few / static_cast<double>(observations_);
  // Of so many independent steps, a mean with geometric weights has the error that this one has.
  const double steps = weight_ * (1 + forgetting) / (2 - weight_ * (1 - forgetting));
  return inflation * noise_s_ / std::sqrt(steps) / mean_s_;
}

// Starts anew at `step`, which stands for `weight` observations, with a fixed part of the same proportion as
// before (`ratio` of the old one); a weak memory of it at n = 0 lets the next share that differs decide.
void CostModel::scale_to(const StepTime& step, double ratio, double weight) {
  const double n = static_cast<double>(step.n);
  const double fixed_s = known() ? std::min(cost().fixed_s * ratio, step.seconds) : 0;
  const double memory = known() ? memory_of_fixed_part : 0;
  r00_ = weight + memory;
  r01_ = weight * n;
  r11_ = weight * n * n;
  y0_ = weight * step.seconds + memory * fixed_s;
  y1_ = weight * n * step.seconds;
  weight_ = 0;
  average(step, weight);
  off_.clear();
}

void CostModel::average(const StepTime& step, double weight) {
  weight_ = forgetting * weight_ + weight;
  const double part = weight / weight_;
  mean_n_ += part * (static_cast<double>(step.n) - mean_n_);
  mean_s_ += part * (step.seconds - mean_s_);
}

void CostModel::believe(const StepTime& step) {
  if (step.n <= 0 || !(step.seconds > 0)) return;
  scale_to(step, known() ? step.seconds / seconds(step.n) : 1, 1);
  noise_s_ = std::max(noise_s_, first_noise * step.seconds);
  ++observations_;
  largest_seen_ = std::max(largest_seen_, step.n);
}

// Whether this step, after those before it, shows that the rank has another speed now; takes it in if so.
bool CostModel::has_changed(const StepTime& step, double expected_s) {
  const double error_s = step.seconds - expected_s;
  if (std::abs(error_s) <= std::max(far_off * noise_s_, far_off_relative * expected_s)) {
    off_.clear();
    return false;
  }
  if (!off_.empty() && off_above_ != (error_s > 0)) off_.clear();
  off_above_ = error_s > 0;
  off_.push_back(step);
  if (off_.size() < in_a_row) return false;
  std::vector<double> ratios;
  for (const StepTime& off : off_) ratios.push_back(off.seconds / seconds(off.n));
  std::sort(ratios.begin(), ratios.end());
  const double median = ratios[ratios.size() / 2];
  noise_s_ = std::max(noise_s_ * median, (ratios.back() - ratios.front()) / 2 * expected_s);
  scale_to({step.n, median * expected_s}, median, static_cast<double>(in_a_row));
  return true;
}

void CostModel::observe(const StepTime& step) {
  if (step.n <= 0 || !(step.seconds > 0)) return;
  largest_seen_ = std::max(largest_seen_, step.n);
  if (!known()) {
    scale_to(step, 1, 1);
    noise_s_ = first_noise * step.seconds;
    observations_ = 1;
    return;
  }
  const double expected_s = seconds(step.n), error_s = step.seconds - expected_s;
  ++observations_;
  if (has_changed(step, expected_s)) return;

  const double n = static_cast<double>(step.n);
  const double weight = std::min(1.0, clip * noise_s_ / std::abs(error_s));
  const double clipped_s = std::min(std::abs(error_s), clip * noise_s_);
  // The first guess of the noise counts as a quarter of an observation.
  const double memory = std::max(noise_memory, 1 / (static_cast<double>(observations_) - 0.75));
  noise_s_ = std::sqrt((1 - memory) * noise_s_ * noise_s_ + memory * clipped_s * clipped_s);
  noise_s_ = std::max(noise_s_, 1e-4 * expected_s);  // clocks are no better

  // What older observations said in the direction of this one is discounted; what is orthogonal stays.
  const double u0 = r00_ + n * r01_, u1 = r01_ + n * r11_;
  const double discount = (1 - forgetting) / (u0 + n * u1);
  const double said = y0_ + n * y1_;
  r00_ += weight - discount * u0 * u0;
  r01_ += weight * n - discount * u0 * u1;
  r11_ += weight * n * n - discount * u1 * u1;
  y0_ += weight * step.seconds - discount * u0 * said;
  y1_ += weight * n * step.seconds - discount * u1 * said;
  average(step, weight);
}

Json CostModel::to_json() const {
  return {{"normal", {r00_, r01_, r11_, y0_, y1_}},
          {"mean", {weight_, mean_n_, mean_s_}},
          {"noise_s", noise_s_},
          {"steps", observations_},
          {"largest", largest_seen_}};
}

CostModel CostModel::from_json(const Json& json, const std::string& where) {
  constexpr ExitCode code = ExitCode::checkpoint;
  const auto normal = json_get<std::vector<double>>(json, "normal", where, code);
  const auto mean = json_get<std::vector<double>>(json, "mean", where, code);
  CostModel model;
  model.noise_s_ = json_get<double>(json, "noise_s", where, code);
  model.observations_ = json_get<std::int64_t>(json, "steps", where, code);
  model.largest_seen_ = json_get<std::int64_t>(json, "largest", where, code);
  bool sound = normal.size() == 5 && mean.size() == 3;
  if (sound) {
    model.r00_ = normal[0], model.r01_ = normal[1], model.r11_ = normal[2], model.y0_ = normal[3],
    model.y1_ = normal[4];
    model.weight_ = mean[0], model.mean_n_ = mean[1], model.mean_s_ = mean[2];
  }
  if (sound && model.observations_ != 0) {
    constexpr double rounding = 1 + 1e-6, huge = 1e100;
    for (const double number : normal) sound = sound && std::abs(number) < huge;
    for (const double number : mean) sound = sound && number > 0 && number < huge;
    sound = sound && model.r00_ > 0 && model.r11_ > 0 &&
            model.r01_ * model.r01_ <= rounding * model.r00_ * model.r11_ && model.noise_s_ > 0 &&
            model.noise_s_ < huge && model.observations_ > 0 && model.largest_seen_ > 0 &&
            model.largest_seen_ <= largest_batch;
  }
  if (!sound) fail(code, "{}: a cost model of {} is not one that steps can give", where, json.dump());
  return model;
}

}  // namespace motley::balance
