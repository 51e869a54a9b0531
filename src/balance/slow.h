// --slow RANK:SPEC[,RANK:SPEC...]: ranks that play a slower device by sleeping, so that several ranks on few
// cores still behave like separate machines.
#pragma once

#include <string>
#include <vector>

namespace motley::balance {

struct SlowSpec {
  double factor = 1;  // compute takes this many times as long; >= 1
};

// Parses e.g. "1:3x,2:1.5x" into one spec per rank. Throws Error(usage) for a rank that does not exist or is
// named twice, a factor below 1, or any other form (the sentence says which forms there are).
std::vector<SlowSpec> parse_slow(const std::string& text, int ranks);

}  // namespace motley::balance
