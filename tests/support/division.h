// What tests and benches hold the share solver against: its definition, and a proof that a division is the
// one which that definition gives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "balance/solver.h"

namespace motley::test {

// The greedy hand-out word by word: one sample at a time. O(batch log R).
inline std::vector<std::int64_t> greedy_shares(std::int64_t batch, std::span<const balance::RankCost> costs) {
  using Offer = std::pair<double, std::size_t>;
  std::priority_queue<Offer, std::vector<Offer>, std::greater<>> offers;
  std::vector<std::int64_t> shares(costs.size());
  const auto offer = [&](std::size_t rank) {
    if (shares[rank] < costs[rank].cap)
      offers.emplace(balance::seconds_for(costs[rank], shares[rank] + 1), rank);
  };
  for (std::size_t rank = 0; rank < costs.size(); ++rank) offer(rank);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::size_t rank = offers.top().second;
    offers.pop();
    ++shares[rank];
    offer(rank);
  }
  return shares;
}

// What is wrong with a division, or nothing if it is the greedy one and by that the fastest: every sample
// that was handed out comes before every one that could have been instead, in the order of (time done, rank).
// A proof in O(R), for batches that cannot be handed out one by one.
inline std::string fault_of(const balance::Division& division, std::int64_t batch,
                            std::span<const balance::RankCost> costs) {
  if (division.shares.size() != costs.size()) return "there is not one share per rank";
  std::int64_t left = batch;
  double slowest_s = 0;
  std::pair<double, std::size_t> last_given{-1, 0},
      first_left{std::numeric_limits<double>::infinity(), costs.size()};
  for (std::size_t rank = 0; rank < costs.size(); ++rank) {
    const std::int64_t share = division.shares[rank];
    if (share < 0 || share > costs[rank].cap || share > left) return "a share is out of bounds";
    left -= share;
    const double seconds = balance::seconds_for(costs[rank], share);
    slowest_s = std::max(slowest_s, seconds);
    if (share > 0) last_given = std::max(last_given, {seconds, rank});
    if (share < costs[rank].cap)
      first_left = std::min(first_left, {balance::seconds_for(costs[rank], share + 1), rank});
  }
  if (left != 0) return "the shares do not sum to the batch";
  if (slowest_s != division.slowest_s) return "slowest_s is not the time of the slowest rank";
  // The same rank may stand on both sides: its next sample may end when its last one does.
  if (first_left < last_given) return "a sample could have been done earlier elsewhere";
  return "";
}

}  // namespace motley::test
