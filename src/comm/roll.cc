#include "comm/roll.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>

namespace motley::comm {

Roll::Roll(std::vector<std::string> names, double now_s)
    : names_(std::move(names)), entries_(names_.size(), {{}, now_s}), moved_s_(now_s) {}

void Roll::heard(int rank, const RankState& state, double now_s) {
  Entry& entry = entries_[static_cast<std::size_t>(rank)];
  if (state.progress != entry.state.progress) moved_s_ = now_s;
  entry = {state, now_s};
}

std::uint64_t Roll::movement() const {
  return std::accumulate(entries_.begin(), entries_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Entry& entry) { return sum + entry.state.progress; });
}

std::string Roll::seen(std::size_t rank, double now_s, double silence_s) const {
  const Entry& entry = entries_[rank];
  const double silent_s = now_s - entry.heard_s;
  std::string text = names_[rank];
  if (silent_s > silence_s) text += fmt::format(" has not been heard of for {:.1f} s and", silent_s);
  return text + fmt::format(" was last seen {}{} in step {}, for {:.1f} s",
                            entry.state.waiting ? "waiting for " : "", entry.state.doing, entry.state.step,
                            entry.state.for_s + silent_s);
}

std::string Roll::verdict(double now_s, double silence_s) const {
  std::vector<std::size_t> silent, busy, all(entries_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const std::size_t rank : all) {
    if (now_s - entries_[rank].heard_s > silence_s) silent.push_back(rank);
    if (!entries_[rank].state.waiting) busy.push_back(rank);
  }
  const std::vector<std::size_t>& named = !silent.empty() ? silent : !busy.empty() ? busy : all;
  constexpr std::size_t most = 8;
  std::string text;
  for (std::size_t i = 0; i < named.size() && i < most; ++i)
    text += (i == 0 ? "" : "; ") + seen(named[i], now_s, silence_s);
  if (named.size() > most) text += fmt::format("; and {} more", named.size() - most);
  return fmt::format("nothing has moved for {:.1f} s: {}", stalled_s(now_s), text);
}

}  // namespace motley::comm
