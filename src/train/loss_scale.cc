#include "train/loss_scale.h"

#include <algorithm>

#include "core/error.h"

namespace motley::train {
namespace {

constexpr double first_factor = 65536, growth = 2, backoff = 0.5, largest_factor = 0x1p60;
constexpr std::int64_t steps_to_growth = 2000;

}  // namespace

LossScale::LossScale(double fixed)
    : active_(true), fixed_(fixed > 0), factor_(fixed > 0 ? fixed : first_factor) {}

bool LossScale::note(bool finite) {
  if (!active_) return true;
  if (finite) {
    finite_in_a_row_ = std::max<std::int64_t>(finite_in_a_row_, 0) + 1;
    if (!fixed_ && finite_in_a_row_ == steps_to_growth) {
      factor_ = std::min(factor_ * growth, largest_factor);
      finite_in_a_row_ = 0;
    }
    return true;
  }
  ++skipped_;
  // Counted below zero: steps in a row that were not finite.
  finite_in_a_row_ = std::min<std::int64_t>(finite_in_a_row_, 0) - 1;
  if (fixed_) return true;
  factor_ *= backoff;
  return factor_ >= 1;
}

Json LossScale::to_json() const {
  if (!active_) return {};
  return {{"factor", factor_}, {"finite_in_a_row", finite_in_a_row_}, {"skipped", skipped_}};
}

void LossScale::restore(const Json& state, const std::string& where) {
  if (!active_ || state.is_null()) return;
  const auto factor = json_get<double>(state, "factor", where, ExitCode::checkpoint);
  if (!(factor >= 1 && factor <= largest_factor))
    fail(ExitCode::checkpoint, "{}: the loss scale is {}; expected 1 to 2^60", where, factor);
  if (!fixed_) factor_ = factor;
  finite_in_a_row_ = json_get<std::int64_t>(state, "finite_in_a_row", where, ExitCode::checkpoint);
  skipped_ = json_get<std::int64_t>(state, "skipped", where, ExitCode::checkpoint);
}

}  // namespace motley::train
