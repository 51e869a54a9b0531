#include "report/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/progress.h"

namespace motley::report {
namespace {

constexpr double worth_a_note = 0.05;
constexpr std::size_t ranks_listed = 16;

double mean_compute(const std::vector<RankTime>& ranks) {
  double sum = 0;
  for (const RankTime& rank : ranks) sum += rank.compute_s;
  return ranks.empty() ? 0 : sum / static_cast<double>(ranks.size());
}

std::size_t busiest(const std::vector<RankTime>& ranks) {
  const auto most = std::max_element(ranks.begin(), ranks.end(), [](const RankTime& a, const RankTime& b) {
    return a.compute_s < b.compute_s;
  });
  return static_cast<std::size_t>(most - ranks.begin());
}

// max compute_s / mean compute_s - 1
double imbalance_of(const std::vector<RankTime>& ranks) {
  const double mean = mean_compute(ranks);
  return mean > 0 ? ranks[busiest(ranks)].compute_s / mean - 1 : 0;
}

// Where the time lost to waiting went; fractions of the wall time (definitions in the header).
struct Causes {
  double shares = 0, changing = 0, reading = 0, common = 0;
};

Causes causes_of(double lost, double imbalance, const std::vector<RankTime>& ranks, double wall_s) {
  const double mean = mean_compute(ranks);
  Causes causes;
  causes.shares = imbalance_of(ranks) * mean / wall_s;
  causes.changing = std::max(0.0, imbalance * mean / wall_s - causes.shares);
  for (const RankTime& rank : ranks)
    causes.reading += rank.read_s / static_cast<double>(ranks.size()) / wall_s;
  causes.common = std::max(0.0, lost - causes.shares - causes.changing - causes.reading);
  return causes;
}

std::string shares_note(double lost, const std::vector<RankTime>& ranks, const std::vector<double>& speeds,
                        bool balanced) {
  const std::size_t slow = busiest(ranks);
  const double ratio = speeds[slow] / *std::max_element(speeds.begin(), speeds.end());
  std::string note =
      fmt::format("{:.1f} % of rank-time was lost waiting for rank {}, which ", 100 * lost, slow);
  if (ratio < 0.95) {
    note += fmt::format("works at {:.2f} of the fastest rank's speed. ", ratio);
  } else {
    note += "is as fast as the fastest but had more to do than the others. ";
  }
  if (balanced) {
    return note +
           "Its shares were cut as far as measurements justified: the run was too short to settle, or a step "
           "costs this "
           "rank time that no share can take away. motley plan says whether the run is faster without it.";
  }
  // A rank that had no work has no measured speed, but the proposal must not leave it idle for that.
  std::vector<double> known = speeds;
  const auto working =
      static_cast<double>(std::count_if(known.begin(), known.end(), [](double s) { return s > 0; }));
  const double average = std::accumulate(known.begin(), known.end(), 0.0) / working;
  const bool idle = working < static_cast<double>(known.size());
  std::replace(known.begin(), known.end(), 0.0, average);
  note +=
      fmt::format("Try --policy auto, or --policy static --weights {}", fmt::join(simple_ratio(known), ","));
  return note + (idle ? " (ranks that had no share are taken to be of average speed)." : ".");
}

std::string changing_note(double lost) {
  return fmt::format(
      "{:.1f} % of rank-time was lost waiting for ranks that took turns in being the slowest: their "
      "speeds change from step to step, which no fixed weights can follow. See what else runs on these "
      "machines; a larger --global-batch evens out what is left.",
      100 * lost);
}

std::string crowded_note(double lost) {
  return fmt::format(
      "{:.1f} % of rank-time was lost waiting, because a host has fewer processors than its ranks have "
      "threads: ranks wait while others have their turn. Fewer ranks or --threads per host lose nothing.",
      100 * lost);
}

std::string reading_note(double lost) {
  return fmt::format(
      "{:.1f} % of rank-time was lost waiting, most of it for data: reading is slower than computing. A "
      "contiguous, little-endian data set (motley data inspect says) or faster storage helps.",
      100 * lost);
}

std::string common_note(double lost) {
  return fmt::format(
      "{:.1f} % of rank-time was lost waiting, by all ranks about equally: the shares are already "
      "right, and other weights would not help. The time goes into communication. A larger "
      "--global-batch exchanges gradients less often.",
      100 * lost);
}

}  // namespace

void Summary::add(const StepRecord& record) {
  if (ranks_.size() < record.ranks.size()) ranks_.resize(record.ranks.size());
  steps_ += record.steps;
  samples_ += record.samples;
  wall_s_ += record.step_s;
  imbalance_sum_ += static_cast<double>(record.steps) * imbalance_of(record.ranks);
  for (std::size_t r = 0; r < record.ranks.size(); ++r) {
    ranks_[r].n += record.ranks[r].n * static_cast<double>(record.steps);
    ranks_[r].compute_s += record.ranks[r].compute_s;
    ranks_[r].wait_s += record.ranks[r].wait_s;
    ranks_[r].read_s += record.ranks[r].read_s;
  }
}

double Summary::samples_per_s() const {
  return wall_s_ > 0 ? static_cast<double>(samples_) / wall_s_ : 0;
}

double Summary::imbalance() const {
  return steps_ > 0 ? imbalance_sum_ / static_cast<double>(steps_) : 0;
}

double Summary::lost_fraction() const {
  if (ranks_.empty() || wall_s_ <= 0) return 0;
  double wait_s = 0;
  for (const RankTime& rank : ranks_) wait_s += rank.wait_s + rank.read_s;
  return wait_s / (static_cast<double>(ranks_.size()) * wall_s_);
}

std::vector<double> Summary::speeds() const {
  std::vector<double> speeds;
  speeds.reserve(ranks_.size());
  for (const RankTime& rank : ranks_) {
    speeds.push_back(rank.n > 0 && rank.compute_s > 0 ? rank.n / rank.compute_s : 0);
  }
  return speeds;
}

std::string Summary::text(bool crowded, bool balanced) const {
  if (steps_ == 0 || wall_s_ <= 0) return "no step was taken";
  std::string text = fmt::format("{} steps, {} samples in {}: {} samples/s\n", steps_, samples_,
                                 duration_text(wall_s_), rate_text(samples_per_s()));
  if (ranks_.empty()) {
    text.pop_back();
    return text;
  }

  const std::vector<double> speed = speeds();
  std::vector<std::size_t> order(ranks_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (order.size() > ranks_listed) {
    std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
      return ranks_[a].compute_s > ranks_[b].compute_s;
    });
    order.resize(ranks_listed);
    text += fmt::format("the {} busiest of {} ranks:\n", ranks_listed, ranks_.size());
  }
  text += fmt::format("{:>6} {:>9} {:>12} {:>9} {:>9}\n", "rank", "share", "samples/s", "working", "waiting");
  for (const std::size_t r : order) {
    text += fmt::format("{:>6} {:>9.1f} {:>12} {:>7.1f} % {:>7.1f} %\n", r,
                        ranks_[r].n / static_cast<double>(steps_), rate_text(speed[r]),
                        100 * ranks_[r].compute_s / wall_s_,
                        100 * (ranks_[r].wait_s + ranks_[r].read_s) / wall_s_);
  }
  const double lost = lost_fraction();
  text += fmt::format(
      "imbalance {:.1f} % (the busiest rank's work over the mean), {:.1f} % of rank-time lost waiting\n",
      100 * imbalance(), 100 * lost);
  if (lost <= worth_a_note) return text + "Nothing needs changing: the ranks hardly waited for each other.";

  const Causes causes = causes_of(lost, imbalance(), ranks_, wall_s_);
  std::string note;
  const double most = std::max({causes.shares, causes.changing, causes.reading, causes.common});
  if (causes.reading >= most || ranks_.size() == 1) {
    note = reading_note(lost);
  } else if (causes.shares >= most) {
    note = shares_note(lost, ranks_, speed, balanced);
  } else if (crowded) {
    note = crowded_note(lost);
  } else if (causes.changing >= most) {
    note = changing_note(lost);
  } else {
    note = common_note(lost);
  }
  return text + "NOTE: " + note;
}

std::vector<int> simple_ratio(const std::vector<double>& speeds, int limit) {
  const double fastest = speeds.empty() ? 0 : *std::max_element(speeds.begin(), speeds.end());
  if (!(fastest > 0)) return std::vector<int>(speeds.size(), 1);
  std::vector<int> best;
  double best_error = INFINITY;
  for (int largest = 1; largest <= std::max(limit, 1); ++largest) {
    std::vector<int> ratio;
    double error = 0;
    for (const double speed : speeds) {
      const double exact = speed / fastest * largest;
      // A rank that works at all is given something; one that never worked has no speed to go by.
      ratio.push_back(speed > 0 ? std::max(1, static_cast<int>(std::lround(exact))) : 0);
      if (speed > 0) error = std::max(error, std::abs(ratio.back() / exact - 1));
    }
    if (error < best_error - 1e-9) {
      best_error = error;
      best = ratio;
    }
    if (best_error <= 0.1) break;
  }
  return best;
}

}  // namespace motley::report
