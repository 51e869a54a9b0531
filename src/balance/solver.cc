#include "balance/solver.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "core/error.h"

namespace motley::balance {
namespace {

// Looks for a border between whole numbers: the last one that is inside. Gallops away from a guess and then
// halves, so that a good guess costs two questions and a bad one twice the logarithm of its error.
class BorderSearch {
 public:
  // `inside` is known to be inside, `outside` not to be. The guess lies between them, wrong by about `step`.
  BorderSearch(std::int64_t inside, std::int64_t outside, std::int64_t guess, std::int64_t step)
      : inside_(inside), outside_(outside), asked_(guess), step_(step) {}

  bool done() const { return outside_ - inside_ <= 1; }
  std::int64_t asked() const { return asked_; }
  std::int64_t last_inside() const { return inside_; }

  void answer(bool is_inside) {
    (is_inside ? inside_ : outside_) = asked_;
    const bool gallop = step_ < (is_inside ? outside_ - asked_ : asked_ - inside_);
    if (gallop) {
      asked_ += is_inside ? step_ : -step_;
      step_ *= 2;
    } else {
      asked_ = inside_ + (outside_ - inside_) / 2;
    }
  }

 private:
  std::int64_t inside_, outside_, asked_, step_;
};

// The costs, with caps that no longer exceed the batch, so that none of the sums below can overflow.
std::vector<RankCost> checked(std::int64_t batch, std::span<const RankCost> ranks) {
  MOTLEY_CHECK(batch >= 0);
  std::vector<RankCost> costs(ranks.begin(), ranks.end());
  std::int64_t missing = batch;
  for (std::size_t r = 0; r < costs.size(); ++r) {
    RankCost& cost = costs[r];
    if (!std::isfinite(cost.fixed_s) || !std::isfinite(cost.sample_s) || cost.fixed_s < 0 ||
        cost.sample_s < 0) {
      fail(ExitCode::usage,
           "the cost of rank {} is {} s and {} s per sample: costs are finite numbers and not negative", r,
           cost.fixed_s, cost.sample_s);
    }
    if (cost.cap < 0) {
      fail(ExitCode::usage, "the largest share of rank {} is {} samples: the least that it can be is 0", r,
           cost.cap);
    }
    cost.fixed_s = std::fabs(cost.fixed_s);  // -0 is equal to 0, but its bits are not
    cost.sample_s = std::fabs(cost.sample_s);
    cost.cap = std::min(cost.cap, batch);
    missing -= std::min(cost.cap, missing);
  }
  if (missing > 0) {
    fail(ExitCode::usage,
         "a batch of {} does not fit: all ranks together take at most {}, which is {} too few", batch,
         batch - missing, missing);
  }
  return costs;
}

// What the batch has beyond the samples that are done by `time_s` if samples can be divided. Full ranks are
// counted in whole numbers: where a fast one is full, what is missing can be less than a double of the sum
// would tell.
double missing_if_divided(double time_s, std::int64_t batch, std::span<const RankCost> costs) {
  std::int64_t left = batch;
  double parts = 0;
  for (const RankCost& cost : costs) {
    if (time_s < cost.fixed_s) continue;
    if (time_s < seconds_for(cost, cost.cap)) {
      parts += (time_s - cost.fixed_s) / cost.sample_s;
    } else {
      left -= cost.cap;
      if (left < 0) break;
    }
  }
  return static_cast<double>(left) - parts;
}

// The ranks that are at work at a time, neither waiting for their fixed part nor full.
struct Flow {
  std::int64_t ranks = 0;
  double samples_per_s = 0;
};

Flow flow_at(double time_s, std::span<const RankCost> costs) {
  Flow flow;
  for (const RankCost& cost : costs) {
    if (time_s < cost.fixed_s || time_s >= seconds_for(cost, cost.cap)) continue;
    ++flow.ranks;
    flow.samples_per_s += 1 / cost.sample_s;
  }
  return flow;
}

// Water-filling: between the times at which ranks begin and those at which they are full, what is missing
// falls in straight lines. The line that reaches 0 is found by halving these times around their median. Sums
// are made anew for each, because a sum kept by adding and taking away loses its digits when a very fast rank
// is full.
double water_level(std::int64_t batch, std::span<const RankCost> costs) {
  std::vector<double> bends;
  bends.reserve(2 * costs.size());
  for (const RankCost& cost : costs) {
    if (cost.cap == 0) continue;
    bends.push_back(cost.fixed_s);
    bends.push_back(seconds_for(cost, cost.cap));
  }
  double before = -1, after = *std::max_element(bends.begin(), bends.end());
  for (auto first = bends.begin(), last = bends.end(); first != last;) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last);
    if (missing_if_divided(*middle, batch, costs) > 0) {
      before = *middle;
      first = middle + 1;
    } else {
      after = std::min(after, *middle);
      last = middle;
    }
  }
  const Flow flow = flow_at(before, costs);
  if (flow.ranks == 0) return after;  // where a rank whose samples cost nothing begins
  return std::min(after, before + missing_if_divided(before, batch, costs) / flow.samples_per_s);
}

// The largest share up to `cap` that takes no longer than `time_s`. seconds_for() decides, because a quotient
// is rounded in another way.
std::int64_t largest_share_by(double time_s, const RankCost& cost, std::int64_t cap) {
  if (seconds_for(cost, cap) <= time_s) return cap;
  if (seconds_for(cost, 1) > time_s) return 0;
  const double quotient = (time_s - cost.fixed_s) / cost.sample_s;
  const std::int64_t guess =
      quotient < static_cast<double>(cap) ? static_cast<std::int64_t>(quotient) : cap - 1;
  BorderSearch search(1, cap, std::clamp(guess, std::int64_t{1}, cap - 1), 1);
  while (!search.done()) search.answer(seconds_for(cost, search.asked()) <= time_s);
  return search.last_inside();
}

// What the batch has beyond the whole samples that are done by `time_s`; some negative number when more are
// done.
std::int64_t missing_at(double time_s, std::int64_t batch, std::span<const RankCost> costs) {
  std::int64_t missing = batch;
  for (const RankCost& cost : costs) {
    missing -= largest_share_by(time_s, cost, cost.cap);
    if (missing < 0) break;
  }
  return missing;
}

// A time by which no more than the batch is done, and so much of it that at most one sample per rank is
// missing, or else that all of those missing end at the next larger double. Times are searched as their bits,
// which order the doubles that are not negative; -1 is before all of them. One or two questions do unless the
// costs are absurd.
std::int64_t time_bits_below(std::int64_t batch, std::span<const RankCost> costs) {
  if (batch == 0) return -1;
  const auto bits = [](double time_s) { return std::bit_cast<std::int64_t>(time_s); };
  const std::int64_t forever = bits(std::numeric_limits<double>::infinity());

  // Rounding down takes half a sample on average from every rank at work, so that the guess may be later by
  // the sum of these, less three times its deviation. Should it be too late all the same, the level itself is
  // next.
  const double level = water_level(batch, costs);
  const Flow flow = flow_at(level, costs);
  const auto working = static_cast<double>(flow.ranks);
  const double ahead = std::max(0.0, working / 2 - std::sqrt(working));
  const std::int64_t guess = bits(ahead > 0 ? level + ahead / flow.samples_per_s : level);
  BorderSearch search(-1, forever + 1, guess, std::max(std::int64_t{1}, guess - bits(level)));
  const auto few = static_cast<std::int64_t>(costs.size());
  for (std::int64_t left = batch; !search.done() && (search.last_inside() < 0 || left > few);) {
    const std::int64_t missing = missing_at(std::bit_cast<double>(search.asked()), batch, costs);
    if (missing >= 0) left = missing;
    search.answer(missing >= 0);
  }
  return search.last_inside();
}

struct Offer {
  double done_s;
  std::size_t rank;
};

bool worse(const Offer& a, const Offer& b) {
  return a.done_s != b.done_s ? a.done_s > b.done_s : a.rank > b.rank;
}

// Every sample to the rank that would finish it first. As long as one more takes that rank no longer it stays
// first, and is given them all at once: a rank whose samples cost nothing may get most of the batch.
void hand_out(std::int64_t samples, std::span<const RankCost> costs, std::span<std::int64_t> shares) {
  std::vector<Offer> offers;
  offers.reserve(costs.size());
  for (std::size_t r = 0; r < costs.size(); ++r) {
    if (shares[r] < costs[r].cap) offers.push_back({seconds_for(costs[r], shares[r] + 1), r});
  }
  std::make_heap(offers.begin(), offers.end(), worse);
  while (samples > 0) {
    std::pop_heap(offers.begin(), offers.end(), worse);
    Offer& best = offers.back();
    const RankCost& cost = costs[best.rank];
    std::int64_t& share = shares[best.rank];
    const std::int64_t next = largest_share_by(best.done_s, cost, std::min(cost.cap, share + samples));
    samples -= next - share;
    share = next;
    if (share < cost.cap) {
      best.done_s = seconds_for(cost, share + 1);
      std::push_heap(offers.begin(), offers.end(), worse);
    } else {
      offers.pop_back();
    }
  }
}

}  // namespace

// One rounding, and the same with and without the instruction for it: a product and a sum would differ
// between machines, and with them the shares.
double seconds_for(const RankCost& cost, std::int64_t n) {
  return n == 0 ? 0 : std::fma(static_cast<double>(n), cost.sample_s, cost.fixed_s);
}

Division min_max_shares(std::int64_t batch, std::span<const RankCost> ranks) {
  const std::vector<RankCost> costs = checked(batch, ranks);
  Division division;
  division.shares.resize(costs.size());
  std::int64_t left = batch;
  if (const std::int64_t bits = time_bits_below(batch, costs); bits >= 0) {
    for (std::size_t r = 0; r < costs.size(); ++r) {
      division.shares[r] = largest_share_by(std::bit_cast<double>(bits), costs[r], costs[r].cap);
      left -= division.shares[r];
    }
  }
  hand_out(left, costs, division.shares);
  for (std::size_t r = 0; r < costs.size(); ++r)
    division.slowest_s = std::max(division.slowest_s, seconds_for(costs[r], division.shares[r]));
  return division;
}

double ideal_seconds(std::int64_t batch, std::span<const RankCost> ranks) {
  const std::vector<RankCost> costs = checked(batch, ranks);
  return batch == 0 ? 0 : water_level(batch, costs);
}

}  // namespace motley::balance
