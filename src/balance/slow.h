// --slow RANK:SPEC[,RANK:SPEC...]: ranks that play a slower device by sleeping, so that several ranks on few
// cores still behave like separate machines.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace motley::balance {

// How one rank is slowed during some steps. A delay is per batch: once in a step with a share for the rank.
struct Slowness {
  enum class Kind : std::uint8_t { factor, constant, gamma, exponential };
  Kind kind = Kind::factor;
  double factor = 1;   // factor: compute takes this many times as long; >= 1
  double shape = 1;    // gamma
  double scale_s = 0;  // constant: the delay; exponential: its mean; gamma: its scale (mean shape * scale)
  std::int64_t first_step = 1;  // steps count from 1; both ends belong to it
  std::int64_t last_step = std::numeric_limits<std::int64_t>::max();
};

// All that is said of one rank.
struct SlowSpec {
  std::vector<Slowness> parts;

  // Product of the factors that hold in `step`.
  double factor(std::int64_t step) const;
  // Sum of the delays of `step` in seconds. Random ones are counted draws of (seed, rank, step, place in
  // `parts`), so that a step has the same delay, but for rounding, however often and on whatever machine it
  // is asked for. Steps fit in 32 bits.
  double delay_s(std::int64_t step, int rank, std::uint64_t seed) const;
  // The mean of that delay over its distribution.
  double mean_delay_s(std::int64_t step) const;
  bool empty() const { return parts.empty(); }
};

// Parses one spec per rank out of, for example, "1:3x,2:gamma(2,50ms)@200-400":
//   RANK:3x               compute takes 3 times as long
//   RANK:+100ms           100 ms more per batch; also us, s
//   RANK:gamma(2,50ms)    a gamma-distributed delay per batch of shape 2 and scale 50 ms (mean 100 ms)
//   RANK:exp(80ms)        an exponentially distributed delay per batch of mean 80 ms
//   ...@200-400           only in these steps (counting from 1, both included); @200- from there on
// A rank may be named several times; what is said of it adds up (factors multiply). Throws Error(usage) for a
// rank that does not exist, a factor below 1, a negative delay, a shape that is not above 0, steps the wrong
// way round or before 1, or any other form (the sentence says which forms there are).
std::vector<SlowSpec> parse_slow(const std::string& text, int ranks);

}  // namespace motley::balance
