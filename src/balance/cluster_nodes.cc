#include <algorithm>
#include <charconv>
#include <cmath>

#include "balance/cluster.h"
#include "core/error.h"
#include "core/quantity.h"
#include "core/text.h"

namespace motley::balance {
namespace {

constexpr const char* form =
    "NAMExCOUNT:SPEED/MEMORY+TIME, such as A100x4:1.0/40G or old:0.2+5ms (count, memory and time may be left "
    "out)";

// One node of --nodes, for sentences about it.
struct Entry {
  std::string_view text;

  [[noreturn]] void refuse(const std::string& what) const {
    fail(ExitCode::usage, "--nodes: \"{}\" {}; expected {}", text, what, form);
  }
};

struct Named {
  std::string name;
  std::int64_t count = 1;
};

// Cuts the count off "A100x4". The x of rtx3090 and gtx1080 belongs to the name.
Named parse_name(std::string_view text, const Entry& entry) {
  const std::size_t last = text.find_last_not_of("0123456789");
  const bool counted = last != std::string_view::npos && last + 1 < text.size() && text[last] == 'x';
  if (!counted) return {std::string(text)};
  const std::string_view name = text.substr(0, last);
  if (name == "rt" || name == "gt" || name.ends_with("-rt") || name.ends_with("-gt"))
    return {std::string(text)};
  std::int64_t count = 0;
  const auto result = std::from_chars(text.data() + last + 1, text.data() + text.size(), count);
  if (result.ec != std::errc() || count < 1 || count > most_ranks)
    entry.refuse(fmt::format("has a count that is not 1 to {}", most_ranks));
  return {std::string(trimmed(name)), count};
}

std::vector<ClusterRank> parse_node(std::string_view item, const NodeScale& scale) {
  const Entry entry{item};
  const std::size_t colon = item.find(':');
  if (colon == std::string_view::npos) entry.refuse("has no speed");
  const Named named = parse_name(trimmed(item.substr(0, colon)), entry);
  if (named.name.empty()) entry.refuse("has no name");

  std::string_view rest = trimmed(item.substr(colon + 1));
  ClusterRank rank;
  rank.node = rank.device = named.name;
  if (const std::size_t plus = rest.find_last_of('+'); plus != std::string_view::npos) {
    const auto fixed = parse_seconds(trimmed(rest.substr(plus + 1)));
    if (!fixed) entry.refuse("has a + without a time such as 5ms behind it");
    rank.fixed_s = *fixed;
    rest = trimmed(rest.substr(0, plus));
  }
  if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
    const auto bytes = parse_bytes(trimmed(rest.substr(slash + 1)));
    if (!bytes || *bytes < 1 || *bytes > 0x1p53)
      entry.refuse("has a / without a memory such as 16G behind it");
    rank.memory_limit_bytes = static_cast<std::int64_t>(*bytes);
    rest = trimmed(rest.substr(0, slash));
  }
  double speed = 0;
  const auto result = std::from_chars(rest.data(), rest.data() + rest.size(), speed);
  if (result.ec != std::errc() || result.ptr != rest.data() + rest.size() || !std::isfinite(speed) ||
      speed <= 0)
    entry.refuse("has no speed above 0");
  rank.sample_s = scale.sample_s / speed;
  rank.micro_s = scale.micro_s / speed;
  if (!std::isfinite(rank.sample_s) || !std::isfinite(rank.micro_s) || rank.sample_s == 0)
    entry.refuse("has a speed beyond what can be computed with");
  rank.model_bytes = scale.model_bytes;
  rank.sample_bytes = scale.sample_bytes;
  return std::vector<ClusterRank>(static_cast<std::size_t>(named.count), rank);
}

}  // namespace

std::vector<ClusterRank> parse_nodes(const std::string& text, const NodeScale& scale) {
  std::vector<ClusterRank> ranks;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = trimmed(rest.substr(0, comma));
    if (more) rest.remove_prefix(comma + 1);
    const std::vector<ClusterRank> node = parse_node(item, scale);
    if (static_cast<std::int64_t>(ranks.size() + node.size()) > most_ranks)
      fail(ExitCode::usage, "--nodes has more than {} ranks; expected fewer", most_ranks);
    ranks.insert(ranks.end(), node.begin(), node.end());
  }
  return ranks;
}

}  // namespace motley::balance
