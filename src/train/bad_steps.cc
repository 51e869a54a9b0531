#include "train/bad_steps.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace motley::train {

bool BadSteps::note(bool finite) {
  if (finite) {
    in_a_row_ = 0;
    return true;
  }
  ++skipped_;
  return ++in_a_row_ < most_in_a_row_;
}

Json BadSteps::to_json() const {
  return {{"in_a_row", in_a_row_}, {"skipped", skipped_}};
}

void BadSteps::restore(const Json& state, const std::string& where) {
  if (state.is_null()) return;
  const auto in_a_row = json_get<std::int64_t>(state, "in_a_row", where, ExitCode::checkpoint),
             skipped = json_get<std::int64_t>(state, "skipped", where, ExitCode::checkpoint);
  if (in_a_row < 0 || skipped < in_a_row)
    fail(ExitCode::checkpoint,
         "{}: {} steps were skipped, the last {} in a row; expected at least as many, and none below 0",
         where, skipped, in_a_row);
  in_a_row_ = in_a_row;
  skipped_ = skipped;
}

std::string to_json_line(const std::vector<BadStep>& ranks, double loss, double grad_norm) {
  nlohmann::ordered_json line;
  line["step"] = ranks.at(0).step;
  line["epoch"] = ranks.at(0).epoch;
  line["loss"] = loss;  // null when it is not finite
  line["grad_norm"] = grad_norm;
  auto& parts = line["ranks"] = nlohmann::ordered_json::array();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    parts.push_back({{"rank", rank}, {"finite", ranks[rank].own_finite}, {"samples", ranks[rank].samples}});
  return line.dump();
}

std::string suspects_text(const std::vector<BadStep>& ranks) {
  constexpr std::size_t most_samples = 8;
  const bool all =
      std::all_of(ranks.begin(), ranks.end(), [](const BadStep& part) { return part.own_finite; });
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::vector<std::uint64_t>& samples = ranks[rank].samples;
    if (samples.empty() || (ranks[rank].own_finite && !all)) continue;
    text += fmt::format("{}rank {}: sample{} {}", text.empty() ? "" : "; ", rank,
                        samples.size() == 1 ? "" : "s", samples[0]);
    const std::size_t named = std::min(samples.size(), most_samples);
    for (std::size_t i = 1; i < named; ++i) text += fmt::format(", {}", samples[i]);
    if (named < samples.size()) text += fmt::format(" and {} more", samples.size() - named);
  }
  return text;
}

std::vector<BadStep> gather(const BadStep& own, const comm::Communicator& world) {
  constexpr std::size_t head = 4;
  constexpr const char* what = "the samples of a step that is skipped";
  double longest[] = {static_cast<double>(own.samples.size())};
  world.all_reduce_max(longest, what);
  std::vector<double> mine = {static_cast<double>(own.step), static_cast<double>(own.epoch),
                              own.own_finite ? 1.0 : 0.0, static_cast<double>(own.samples.size())};
  mine.insert(mine.end(), own.samples.begin(), own.samples.end());  // ids are below 2^53
  mine.resize(head + static_cast<std::size_t>(longest[0]));
  const std::vector<double> all = world.gather(mine, 0, what);
  std::vector<BadStep> ranks;
  for (std::size_t at = 0; at < all.size(); at += mine.size()) {
    BadStep part{static_cast<std::int64_t>(all[at]), static_cast<int>(all[at + 1]), all[at + 2] != 0, {}};
    const auto samples = static_cast<std::size_t>(all[at + 3]);
    for (std::size_t i = 0; i < samples; ++i)
      part.samples.push_back(static_cast<std::uint64_t>(all[at + head + i]));
    ranks.push_back(std::move(part));
  }
  return ranks;
}

}  // namespace motley::train
