// Dividing a global batch among ranks. Pure functions of numbers: no MPI, no device, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace motley::balance {

// Samples of a global batch at most: a slot is a 32-bit word of the random counter.
constexpr std::int64_t largest_batch = std::int64_t{1} << 31;

// Integer shares that sum to `batch` and are proportional to `weights`, by the largest-remainder (Hamilton)
// method: every share is within one of batch * weight / sum(weights); ties go to the lower rank, so that all
// machines compute the same. A weight of zero gives a share of zero.
// Throws Error(usage) when a weight is negative or not finite, or when all are zero.
std::vector<std::int64_t> proportional_shares(std::int64_t batch, std::span<const double> weights);

// The same, with no share above its rank's cap: what a rank may not have goes to the others in proportion, and to ranks of
// weight zero, equally, only when those are full. Weights may all be zero. Throws Error(usage) as above, and when the caps,
// which are >= 0, sum to less than the batch.
std::vector<std::int64_t> capped_shares(std::int64_t batch, std::span<const double> weights,
                                        std::span<const std::int64_t> caps);

// offsets[r] = sum of shares before rank r: rank r owns slots [offsets[r], offsets[r] + shares[r]).
std::vector<std::int64_t> share_offsets(std::span<const std::int64_t> shares);

// Sizes of the micro-batches that a share of n is run as: as few as the cap allows and as equal as possible,
// larger ones first. Empty for n = 0. cap >= 1.
std::vector<std::int64_t> micro_batches(std::int64_t n, std::int64_t cap);

// Parses "--weights 1,1,2,4" for `ranks` ranks. Throws Error(usage) with a sentence for a wrong count,
// something that is not a number, negative numbers, or all zeros.
std::vector<double> parse_weights(const std::string& text, int ranks);

}  // namespace motley::balance
