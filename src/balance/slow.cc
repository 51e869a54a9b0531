#include "balance/slow.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <system_error>

#include "core/error.h"

namespace motley::balance {
namespace {

struct Entry {
  int rank;
  double factor;
};

// "3:1.5x"
Entry parse_entry(std::string_view item, const std::string& text) {
  const auto refuse = [&]() {
    fail(ExitCode::usage,
         "--slow {}: \"{}\" is not of the form RANK:FACTORx, such as 1:3x (rank 1 takes three times as long)",
         text, item);
  };
  const char* const end = item.data() + item.size();

  int rank = 0;
  const auto rank_result = std::from_chars(item.data(), end, rank);
  if (rank_result.ec == std::errc::invalid_argument || rank_result.ptr == end || *rank_result.ptr != ':')
    refuse();
  if (rank_result.ec == std::errc::result_out_of_range) rank = -1;  // no run has that many ranks

  double factor = 0;
  const auto factor_result = std::from_chars(rank_result.ptr + 1, end, factor);
  if (factor_result.ec != std::errc{} || factor_result.ptr + 1 != end || *factor_result.ptr != 'x' ||
      !std::isfinite(factor)) {
    refuse();
  }
  return {rank, factor};
}

}  // namespace

std::vector<SlowSpec> parse_slow(const std::string& text, int ranks) {
  std::vector<SlowSpec> specs(static_cast<std::size_t>(ranks));
  if (text.empty()) return specs;

  std::vector<bool> named(specs.size(), false);
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);

    const Entry entry = parse_entry(item, text);
    if (entry.rank < 0 || entry.rank >= ranks) {
      fail(ExitCode::usage,
           "--slow {}: \"{}\" names a rank that does not exist; the ranks of this run are 0 to {}", text,
           item, ranks - 1);
    }
    const auto rank = static_cast<std::size_t>(entry.rank);
    if (named[rank]) fail(ExitCode::usage, "--slow {}: rank {} is named twice", text, entry.rank);
    if (entry.factor < 1) {
      fail(ExitCode::usage, "--slow {}: \"{}\" would make rank {} faster; the least factor is 1", text, item,
           entry.rank);
    }
    named[rank] = true;
    specs[rank].factor = entry.factor;
  }
  return specs;
}

}  // namespace motley::balance
