#include "balance/shares.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/text.h"

namespace motley::balance {
namespace {

__extension__ typedef unsigned __int128 Wide;

// Weights as integers below 2^62, in proportion: from here on all arithmetic is exact, so that no rounding
// can make the shares miss the batch and no order of summation can matter. What is lost is below 2^-62 of the
// largest weight; a weight within a factor of 512 of the largest loses nothing.
std::vector<std::uint64_t> integer_weights(std::span<const double> weights) {
  double largest = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    if (!std::isfinite(weights[r]) || weights[r] < 0) {
      fail(ExitCode::usage, "the weight of rank {} is {}: weights are finite numbers and not negative", r,
           weights[r]);
    }
    largest = std::max(largest, weights[r]);
  }
  if (largest == 0)
    fail(ExitCode::usage, "all weights are zero: at least one rank needs a share of the batch");

  const int shift = 62 - (std::ilogb(largest) + 1);
  std::vector<std::uint64_t> scaled(weights.size());
  std::transform(weights.begin(), weights.end(), scaled.begin(), [shift](double weight) {
    return static_cast<std::uint64_t>(std::nearbyint(std::ldexp(weight, shift)));
  });
  return scaled;
}

double parse_weight(std::string_view item, const std::string& text) {
  double weight = 0;
  const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), weight);
  if (error == std::errc::invalid_argument || end != item.data() + item.size()) {
    fail(ExitCode::usage, "--weights {}: \"{}\" is not a number; expected one number per rank, like 1,1,2.5",
         text, item);
  }
  if (error == std::errc::result_out_of_range || !std::isfinite(weight)) {
    fail(ExitCode::usage, "--weights {}: \"{}\" is too large or too small to be used as a weight", text,
         item);
  }
  if (weight < 0)
    fail(ExitCode::usage, "--weights {}: \"{}\" is negative; the least weight is 0", text, item);
  return weight;
}

}  // namespace

std::vector<std::int64_t> proportional_shares(std::int64_t batch, std::span<const double> weights) {
  MOTLEY_CHECK(batch >= 0);
  const std::vector<std::uint64_t> scaled = integer_weights(weights);
  const Wide total = std::accumulate(scaled.begin(), scaled.end(), Wide{0});

  std::vector<std::int64_t> shares(scaled.size());
  std::vector<Wide> remainders(scaled.size());
  std::int64_t left = batch;
  for (std::size_t r = 0; r < scaled.size(); ++r) {
    const Wide product = static_cast<Wide>(batch) * scaled[r];  // below 2^125
    shares[r] = static_cast<std::int64_t>(product / total);
    remainders[r] = product % total;
    left -= shares[r];
  }

  // The remainders sum to left * total and each is below total, so more than `left` of them are not zero: a
  // rank of weight zero never gets one of the samples that are left.
  std::vector<std::size_t> order(scaled.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return remainders[a] > remainders[b]; });
  for (std::int64_t i = 0; i < left; ++i) ++shares[order[static_cast<std::size_t>(i)]];
  return shares;
}

std::vector<std::int64_t> capped_shares(std::int64_t batch, std::span<const double> weights,
                                        std::span<const std::int64_t> caps) {
  MOTLEY_CHECK(caps.size() == weights.size());
  std::vector<double> open(weights.begin(), weights.end());  // of ranks that are not full
  std::vector<std::int64_t> shares(weights.size(), 0);
  std::int64_t left = batch;
  const auto fill = [&](std::size_t r) {
    shares[r] = caps[r];
    left -= caps[r];
    open[r] = 0;
  };
  while (left > 0) {
    if (std::all_of(open.begin(), open.end(), [](double weight) { return weight == 0; })) {
      for (std::size_t r = 0; r < open.size(); ++r) open[r] = shares[r] < caps[r] ? 1 : 0;
      if (std::none_of(open.begin(), open.end(), [](double weight) { return weight > 0; }))
        fail(ExitCode::usage, "the ranks may have {} samples at most; the batch has {}", batch - left, batch);
    }
    const std::vector<std::int64_t> wanted = proportional_shares(left, open);
    bool fits = true;
    for (std::size_t r = 0; r < open.size(); ++r) {
      if (open[r] == 0 || wanted[r] <= caps[r]) continue;
      fill(r);
      fits = false;
    }
    if (!fits) continue;
    for (std::size_t r = 0; r < open.size(); ++r) shares[r] += wanted[r];
    left = 0;
  }
  return shares;
}

std::vector<std::int64_t> share_offsets(std::span<const std::int64_t> shares) {
  std::vector<std::int64_t> offsets(shares.size());
  std::exclusive_scan(shares.begin(), shares.end(), offsets.begin(), std::int64_t{0});
  return offsets;
}

std::vector<std::int64_t> micro_batches(std::int64_t n, std::int64_t cap) {
  MOTLEY_CHECK(n >= 0 && cap >= 1);
  if (n == 0) return {};
  const std::int64_t count = (n - 1) / cap + 1;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(count), n / count);
  for (std::int64_t i = 0; i < n % count; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::vector<double> parse_weights(const std::string& text, int ranks) {
  std::vector<double> weights;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    weights.push_back(parse_weight(trimmed(rest.substr(0, comma)), text));
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
  }
  if (weights.size() != static_cast<std::size_t>(ranks)) {
    fail(ExitCode::usage, "--weights {} has {} number{} for {} rank{}; expected one per rank", text,
         weights.size(), weights.size() == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s");
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; })) {
    fail(ExitCode::usage, "--weights {}: all weights are zero; at least one rank needs a share of the batch",
         text);
  }
  return weights;
}

}  // namespace motley::balance
