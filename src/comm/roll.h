// What rank 0 knows of the ranks of a run, and what it concludes when nothing moves any more. Pure functions of what was heard
// and when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace motley::comm {

// What a rank says of itself.
struct RankState {
  std::int64_t step = 0;
  std::uint64_t progress = 0;
  bool waiting = false;  // for other ranks
  double for_s = 0;      // it has been doing this when it said so
  std::string doing;     // "computing", or what it waits for
};

class Roll {
 public:
  // names[r]: "rank 2 (host b, NVIDIA H100)". All are taken as heard of at `now_s`.
  Roll(std::vector<std::string> names, double now_s);

  void heard(int rank, const RankState& state, double now_s);
  // Changes when anything was achieved on any rank.
  std::uint64_t movement() const;
  // For how long nothing has.
  double stalled_s(double now_s) const { return now_s - moved_s_; }
  // One sentence: who keeps the others waiting, what each was last seen doing and since when. Those that were not heard of for
  // `silence_s`; when all were, those that do not wait themselves; when all wait, all.
  std::string verdict(double now_s, double silence_s) const;

 private:
  struct Entry {
    RankState state;
    double heard_s = 0;
  };
  std::string seen(std::size_t rank, double now_s, double silence_s) const;

  std::vector<std::string> names_;
  std::vector<Entry> entries_;
  double moved_s_;
};

}  // namespace motley::comm
