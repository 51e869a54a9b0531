#include "train/region.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/liveness.h"

namespace motley::train {
namespace {

// Shorter sleeps overshoot by more than they last; what is owed is carried to a later lap.
constexpr double shortest_sleep_s = 0.5e-3;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A slow device would be seen to move on the way.
void sleep(double seconds) {
  constexpr double longest_s = 0.2;
  const auto end =
      std::chrono::steady_clock::now() +
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  for (double left_s = seconds; left_s > 0; left_s = seconds_between(std::chrono::steady_clock::now(), end)) {
    std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left_s, longest_s)));
    comm::note_progress();
  }
}

balance::SlowSpec of_this_rank(const std::string& slow, const comm::Communicator& world) {
  if (slow.empty()) return {};
  return balance::parse_slow(slow, world.size())[static_cast<std::size_t>(world.rank())];
}

}  // namespace

ComputeRegion::ComputeRegion(Backend& backend, const balance::SlowSpec& slow, int rank, std::uint64_t seed)
    : backend_(backend), slow_(slow), rank_(rank), seed_(seed) {}

ComputeRegion::ComputeRegion(Backend& backend, const std::string& slow, const comm::Communicator& world,
                             std::uint64_t seed)
    : ComputeRegion(backend, of_this_rank(slow, world), world.rank(), seed) {}

void ComputeRegion::begin_step(std::int64_t step, std::int64_t n) {
  if (slow_.empty()) return;
  factor_ = slow_.factor(step);
  if (n > 0) owed_s_ += slow_.delay_s(step, rank_, seed_);
}

void ComputeRegion::open() {
  opened_ = Clock::now();
  lap_started_ = opened_;
}

void ComputeRegion::lap() {
  comm::note_progress();
  if (slow_.empty()) return;
  backend_.synchronize();
  const Clock::time_point now = Clock::now();
  owed_s_ += (factor_ - 1) * seconds_between(lap_started_, now);
  lap_started_ = now;
  if (owed_s_ < shortest_sleep_s) return;
  sleep(owed_s_);
  lap_started_ = Clock::now();
  const double slept_s = seconds_between(now, lap_started_);
  times_.slept_s += slept_s;
  owed_s_ -= slept_s;  // a sleep that lasted too long is made up for by the next
}

void ComputeRegion::begin_wait() {
  lap();
  waits_.push_back({.begin = backend_.mark()});
}

void ComputeRegion::end_wait() {
  waits_.back().end = backend_.mark();
  if (slow_.empty()) return;
  backend_.synchronize();
  lap_started_ = Clock::now();
}

void ComputeRegion::begin_micro_batch() {
  micro_batches_.push_back({.begin = backend_.mark(), .first_wait = waits_.size()});
}

void ComputeRegion::end_micro_batch() {
  comm::note_progress();
  micro_batches_.back().end = backend_.mark();
  micro_batches_.back().last_wait = waits_.size();
}

void ComputeRegion::close() {
  backend_.synchronize();
  lap();
  std::vector<double> waits_s;
  for (const Span& wait : waits_) waits_s.push_back(seconds_of(wait));
  const double waited_s = std::accumulate(waits_s.begin(), waits_s.end(), 0.0);
  times_.waited_s += waited_s;
  times_.compute_s += std::max(0.0, seconds_between(opened_, Clock::now()) - waited_s);
  for (const Span& span : micro_batches_) {
    double seconds = seconds_of(span);
    for (std::size_t i = span.first_wait; i < span.last_wait; ++i) seconds -= waits_s[i];
    times_.micro_batches_s.push_back(std::max(0.0, seconds));
  }
  micro_batches_.clear();
  waits_.clear();
}

RegionTimes ComputeRegion::take() {
  return std::exchange(times_, {});
}

}  // namespace motley::train
