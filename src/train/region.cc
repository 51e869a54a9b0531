#include "train/region.h"

#include <thread>

#include "balance/slow.h"

namespace motley::train {
namespace {

// Shorter sleeps overshoot by more than they last; what is owed is carried to a later lap.
constexpr double shortest_sleep_s = 0.5e-3;

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

double slow_factor(const std::string& slow, const comm::Communicator& world) {
  if (slow.empty()) return 1;
  return balance::parse_slow(slow, world.size())[static_cast<std::size_t>(world.rank())].factor;
}

void ComputeRegion::open() {
  opened_ = Clock::now();
  lap_started_ = opened_;
}

void ComputeRegion::lap() {
  if (slow_factor_ <= 1) return;
  const Clock::time_point now = Clock::now();
  owed_s_ += (slow_factor_ - 1) * seconds_between(lap_started_, now);
  lap_started_ = now;
  if (owed_s_ < shortest_sleep_s) return;
  std::this_thread::sleep_for(std::chrono::duration<double>(owed_s_));
  lap_started_ = Clock::now();
  // A sleep that lasted too long is made up for by the next.
  owed_s_ -= seconds_between(now, lap_started_);
}

void ComputeRegion::close() {
  lap();
  seconds_ += seconds_between(opened_, Clock::now());
}

double ComputeRegion::take_seconds() {
  const double seconds = seconds_;
  seconds_ = 0;
  return seconds;
}

}  // namespace motley::train
