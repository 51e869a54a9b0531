#include "io/masking.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "io/draws.h"

namespace motley::io {
namespace {

// Positions [first, first + count) that are chosen together.
struct Group {
  std::int32_t first = 0, count = 0;
};

std::vector<Group> candidates(const MaskingOptions& options, const Vocabulary& vocabulary,
                              std::span<const std::int32_t> ids) {
  std::vector<Group> groups;
  groups.reserve(ids.size());
  bool inside_word = false;  // the position before is the end of the last group
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == vocabulary.cls() || ids[i] == vocabulary.sep()) {
      inside_word = false;
      continue;
    }
    if (options.whole_word && inside_word && vocabulary.continues_word(ids[i])) {
      ++groups.back().count;
    } else {
      groups.push_back({static_cast<std::int32_t>(i), 1});
    }
    inside_word = true;
  }
  return groups;
}

std::int32_t replacement(std::int32_t original, const Vocabulary& vocabulary, Draws& draws) {
  const std::uint32_t tenth = draws.below(10);
  if (tenth < 8) return vocabulary.mask();
  if (tenth == 8) return original;
  return static_cast<std::int32_t>(draws.below(static_cast<std::uint32_t>(vocabulary.size())));
}

}  // namespace

void mask_sequence(const MaskingOptions& options, const Vocabulary& vocabulary, const RandomKey& key,
                   std::uint32_t slot, std::span<std::int32_t> ids, std::vector<std::int32_t>& positions,
                   std::vector<std::int32_t>& labels) {
  MOTLEY_CHECK(options.max_predictions >= 1 && options.probability > 0 && options.probability <= 1);
  // nearbyint rounds halves to even, as the reference's round() does.
  const auto wanted =
      static_cast<std::int64_t>(std::nearbyint(static_cast<double>(ids.size()) * options.probability));
  const std::int64_t number =
      std::min(std::max<std::int64_t>(wanted, 1), static_cast<std::int64_t>(options.max_predictions));

  std::vector<Group> groups = candidates(options, vocabulary, ids);
  Draws draws(key, slot);
  const std::size_t before = positions.size();
  std::int64_t chosen = 0;
  // A shuffle (Fisher-Yates) that goes no further than it must.
  for (std::size_t i = 0; i < groups.size() && chosen < number; ++i) {
    std::swap(groups[i], groups[i + draws.below(static_cast<std::uint32_t>(groups.size() - i))]);
    if (chosen + groups[i].count > number) continue;
    chosen += groups[i].count;
    for (std::int32_t j = 0; j < groups[i].count; ++j) positions.push_back(groups[i].first + j);
  }
  std::sort(positions.begin() + static_cast<std::ptrdiff_t>(before), positions.end());
  for (std::size_t i = before; i < positions.size(); ++i) {
    std::int32_t& id = ids[static_cast<std::size_t>(positions[i])];
    labels.push_back(id);
    id = replacement(id, vocabulary, draws);
  }
}

}  // namespace motley::io
