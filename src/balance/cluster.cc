#include "balance/cluster.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace motley::balance {
namespace {

constexpr int format_version = 1;
// Bytes and samples are counted in doubles somewhere: beyond this they are no longer whole.
constexpr std::int64_t most_whole = std::int64_t{1} << 53;

// One object of the file, read key by key.
class Fields {
 public:
  // `known`: the keys that may be there. What nothing reads is a slip in a key that may be left out.
  Fields(const Json& object, std::string where, std::initializer_list<const char*> known)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ExitCode::input, "{} is {}; expected an object", where_, shown(object));
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      fail(ExitCode::input, "{} has \"{}\", which has no meaning there; expected only {}", where_, key,
           fmt::join(known, ", "));
    }
  }

  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  double number(const char* key, double otherwise) const { return number(key, otherwise, false); }
  double positive(const char* key) const {
    if (!has(key)) fail(ExitCode::input, "{} has no \"{}\"; expected a number above 0", where_, key);
    return number(key, 0, true);
  }
  std::int64_t whole(const char* key, std::int64_t otherwise, std::int64_t least = 0,
                     std::int64_t most = most_whole) const {
    if (!has(key)) return otherwise;
    const Json& value = object_.at(key);
    // As a double: it may be an unsigned number beyond the signed ones.
    const double found = value.is_number_integer() ? value.get<double>() : -1;
    const bool too_large = found > static_cast<double>(most);
    if (too_large || found < static_cast<double>(least)) {
      refuse(key, too_large || most != most_whole ? fmt::format("a whole number of {} to {}", least, most)
                                                  : fmt::format("a whole number of at least {}", least));
    }
    return value.get<std::int64_t>();
  }
  std::string text(const char* key) const {
    if (!has(key)) return {};
    if (!object_.at(key).is_string()) refuse(key, "a text");
    return object_.at(key).get<std::string>();
  }

  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(ExitCode::input, "{}: \"{}\" is {}; expected {}", where_, key, shown(object_.at(key)), expected);
  }

 private:
  static std::string shown(const Json& value) {
    const std::string text = value.dump();
    return text.size() <= 60 ? text : std::string(value.type_name());
  }

  double number(const char* key, double otherwise, bool above_zero) const {
    if (!has(key)) return otherwise;
    const Json& value = object_.at(key);
    const double found = value.is_number() ? value.get<double>() : -1;
    if (!std::isfinite(found) || found < 0 || (above_zero && found == 0))
      refuse(key, above_zero ? "a number above 0" : "a number of at least 0");
    return found;
  }

  const Json& object_;
  std::string where_;
};

ClusterRank rank_from_json(const Fields& fields, std::size_t index) {
  ClusterRank rank;
  rank.node = fields.text("node");
  if (rank.node.empty()) rank.node = fmt::format("node {}", index);
  rank.device = fields.text("device");
  rank.fixed_s = fields.number("fixed_s", 0);
  rank.micro_s = fields.number("micro_s", 0);
  rank.sample_s = fields.positive("sample_s");
  rank.memory_limit_bytes = fields.whole("memory_limit_bytes", 0);
  rank.model_bytes = fields.whole("model_bytes", 0);
  rank.sample_bytes = fields.whole("sample_bytes", 0);
  return rank;
}

std::vector<ClusterRank> ranks_from_json(const Json& list, const std::string& where) {
  std::vector<ClusterRank> ranks;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Fields fields(list[i], fmt::format("{}: ranks[{}]", where, i),
                        {"node", "device", "fixed_s", "micro_s", "sample_s", "memory_limit_bytes",
                         "model_bytes", "sample_bytes", "count", "measured"});
    const auto count = fields.whole("count", 1, 1);
    if (count > most_ranks - static_cast<std::int64_t>(ranks.size()))
      fields.refuse("count", fmt::format("at most {} ranks in all", most_ranks));
    ranks.insert(ranks.end(), static_cast<std::size_t>(count), rank_from_json(fields, i));
  }
  return ranks;
}

}  // namespace

ClusterRank nameless(ClusterRank rank) {
  rank.node.clear();
  return rank;
}

std::int64_t largest_micro_batch(const ClusterRank& rank, std::int64_t max_sentences) {
  if (rank.memory_limit_bytes == 0) return max_sentences;
  const std::int64_t room = rank.memory_limit_bytes - rank.model_bytes;
  if (room < 0) return 0;
  return rank.sample_bytes == 0 ? max_sentences : std::min(max_sentences, room / rank.sample_bytes);
}

double compute_seconds(const ClusterRank& rank, std::int64_t micro_batch, std::int64_t n) {
  if (n == 0) return rank.fixed_s;
  const std::int64_t micro_batches = (n - 1) / micro_batch + 1;
  return rank.fixed_s + static_cast<double>(micro_batches) * rank.micro_s +
         static_cast<double>(n) * rank.sample_s;
}

RankCost affine_cost(const ClusterRank& rank, std::int64_t micro_batch) {
  if (micro_batch == 0) return {.fixed_s = rank.fixed_s, .sample_s = rank.sample_s, .cap = 0};
  return {.fixed_s = rank.fixed_s,
          .sample_s = rank.sample_s + rank.micro_s / static_cast<double>(micro_batch)};
}

double all_reduce_seconds(const Network& network, double bytes, std::int64_t ranks) {
  const auto r = static_cast<double>(ranks);
  return 2 * (r - 1) * network.latency_s + 2 * (r - 1) / r * bytes / network.bytes_per_s;
}

double all_reduce_seconds(const Cluster& cluster) {
  if (!cluster.network || cluster.gradient_bytes == 0) return 0;
  return all_reduce_seconds(*cluster.network, static_cast<double>(cluster.gradient_bytes),
                            static_cast<std::int64_t>(cluster.ranks.size()));
}

Network network_of_line(double latency_s, double s_per_byte, std::int64_t ranks) {
  const auto r = static_cast<double>(ranks);
  return {latency_s / (2 * (r - 1)), 2 * (r - 1) / r / s_per_byte};
}

Json to_json(const ClusterRank& rank) {
  return {{"node", rank.node},
          {"device", rank.device},
          {"fixed_s", rank.fixed_s},
          {"micro_s", rank.micro_s},
          {"sample_s", rank.sample_s},
          {"memory_limit_bytes", rank.memory_limit_bytes},
          {"model_bytes", rank.model_bytes},
          {"sample_bytes", rank.sample_bytes}};
}

Json to_json(const Network& network) {
  return {{"latency_s", network.latency_s}, {"bytes_per_s", network.bytes_per_s}};
}

Json to_json(const Cluster& cluster) {
  Json ranks = Json::array();
  for (const ClusterRank& rank : cluster.ranks) ranks.push_back(to_json(rank));
  return {{"format", format_version},
          {"gradient_bytes", cluster.gradient_bytes},
          {"max_sentences", cluster.max_sentences},
          {"global_batch", cluster.global_batch},
          {"network", cluster.network ? to_json(*cluster.network) : Json()},
          {"ranks", std::move(ranks)}};
}

Cluster cluster_from_json(const Json& json, const std::string& where) {
  const Fields fields(
      json, where,
      {"format", "gradient_bytes", "max_sentences", "global_batch", "network", "ranks", "measured"});
  if (const std::int64_t found = fields.whole("format", format_version); found != format_version)
    fields.refuse("format", std::to_string(format_version));
  Cluster cluster;
  cluster.gradient_bytes = fields.whole("gradient_bytes", 0);
  cluster.max_sentences = fields.whole("max_sentences", cluster.max_sentences, 1, largest_batch);
  cluster.global_batch = fields.whole("global_batch", 0, 0, largest_batch);
  if (fields.has("network")) {
    const Fields network(json.at("network"), where + ": network", {"latency_s", "bytes_per_s", "measured"});
    cluster.network = {network.number("latency_s", 0), network.positive("bytes_per_s")};
  }
  if (!fields.has("ranks")) fail(ExitCode::input, "{} has no \"ranks\"; expected a list of them", where);
  if (!json.at("ranks").is_array() || json.at("ranks").empty())
    fields.refuse("ranks", "a list of at least one rank");
  cluster.ranks = ranks_from_json(json.at("ranks"), where);
  return cluster;
}

}  // namespace motley::balance
