#include "train/sample_order.h"

#include <algorithm>
#include <bit>
#include <compare>

#include "core/error.h"
#include "core/permutation.h"

namespace motley::train {
namespace {

// Parts of a pool that places are spread over (a power of 2), and the fewest rows of a part: small pools are
// permuted as a whole.
constexpr std::uint64_t most_parts = 64, fewest_rows_per_part = 64;

std::uint64_t parts_of(std::uint64_t pool_rows) {
  return std::bit_floor(std::clamp<std::uint64_t>(pool_rows / fewest_rows_per_part, 1, most_parts));
}

// The order in which parts are visited, 0 8 4 12 ... of 16: of few parts that follow each other in it, too,
// every half and quarter of the pool has about its share.
std::uint64_t bits_reversed(std::uint64_t value, std::uint64_t parts) {
  std::uint64_t reversed = 0;
  for (std::uint64_t bit = 1; bit < parts; bit <<= 1)
    reversed = reversed << 1 | static_cast<std::uint64_t>((value & bit) != 0);
  return reversed;
}

// Every permutation of an epoch has a number of its own; 0 permutes the blocks.
std::uint64_t stream(std::size_t pool, std::uint64_t part) {
  return static_cast<std::uint64_t>(pool + 1) * most_parts + part;
}

}  // namespace

SampleOrder::SampleOrder(const OrderOptions& options) : options_(options) {
  std::uint64_t first = 0;
  for (const ShardSize& shard : options_.shards) {
    MOTLEY_CHECK(shard.block_rows > 0);
    for (std::uint64_t row = 0; row < shard.rows; row += shard.block_rows)
      blocks_.push_back({first + row, std::min(shard.block_rows, shard.rows - row)});
    first += shard.rows;
  }
  MOTLEY_CHECK(options_.samples >= 1 && (options_.shards.empty() || first == options_.samples));
  MOTLEY_CHECK(options_.pool_rows >= 1);
}

// The blocks of an epoch in their order, and where its pools begin.
void SampleOrder::arrange(int epoch) {
  if (epoch == epoch_) return;
  epoch_ = epoch;
  const KeyedPermutation permuted(blocks_.size(), options_.seed, static_cast<std::uint32_t>(epoch));
  order_.resize(blocks_.size());
  first_place_.assign(1, 0);
  pools_.clear();
  std::uint64_t place = 0, in_pool = options_.pool_rows;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    if (in_pool >= options_.pool_rows) {
      pools_.push_back(place);
      in_pool = 0;
    }
    order_[i] = permuted(i);
    place += blocks_[order_[i]].rows;
    in_pool += blocks_[order_[i]].rows;
    first_place_.push_back(place);
  }
  pools_.push_back(place);
}

std::uint64_t SampleOrder::pool_size(std::size_t pool) const {
  return pools_[pool + 1] - pools_[pool];
}

// Which row of the pool, counted through its blocks, stands at `place` (counted from the pool's first). The
// pool is cut into parts of equal length, or one row more; each run of as many places visits them all, and
// takes the next row of each part's own permutation.
std::uint64_t SampleOrder::position_in_pool(std::size_t pool, std::uint64_t place) const {
  const std::uint64_t rows = pool_size(pool), parts = parts_of(rows), run = place / parts;
  const auto begin = [&](std::uint64_t part) { return part * rows / parts; };
  std::uint64_t part = bits_reversed(place % parts, parts);
  if (run == rows / parts) {
    // The last run has only the parts that are longer than the others.
    std::uint64_t to_pass = place % parts, visit = 0;
    for (;; ++visit) {
      part = bits_reversed(visit, parts);
      const bool longer = begin(part + 1) - begin(part) > run;
      if (longer && to_pass-- == 0) break;
    }
  }
  const KeyedPermutation in_part(begin(part + 1) - begin(part), options_.seed,
                                 static_cast<std::uint32_t>(epoch_), stream(pool, part));
  return begin(part) + in_part(run);
}

std::uint64_t SampleOrder::row_at(std::size_t pool, std::uint64_t position) const {
  const std::uint64_t place = pools_[pool] + position;
  const auto next = std::upper_bound(first_place_.begin(), first_place_.end(), place);
  const auto i = static_cast<std::size_t>(next - first_place_.begin()) - 1;
  return blocks_[order_[i]].first_row + (place - first_place_[i]);
}

std::vector<std::uint64_t> SampleOrder::step(int epoch, std::uint64_t first, std::uint64_t count) {
  MOTLEY_CHECK(first <= options_.samples && count <= options_.samples - first);
  std::vector<std::uint64_t> samples(count);
  if (options_.shards.empty()) {
    const KeyedPermutation order(options_.samples, options_.seed, static_cast<std::uint32_t>(epoch));
    for (std::uint64_t i = 0; i < count; ++i) samples[i] = order(first + i);
    return samples;
  }
  arrange(epoch);
  struct Drawn {
    std::uint64_t fraction;  // of the pool that lies before it
    std::size_t pool;
    std::uint64_t position;
    auto operator<=>(const Drawn&) const = default;
  };
  std::vector<Drawn> drawn(count);
  const auto after = std::upper_bound(pools_.begin(), pools_.end(), first);
  auto pool = static_cast<std::size_t>(after - pools_.begin()) - 1;
  for (std::uint64_t i = 0; i < count; ++i) {
    while (first + i >= pools_[pool + 1]) ++pool;
    const std::uint64_t position = position_in_pool(pool, first + i - pools_[pool]);
    // A step that ends one pool and begins the next is sorted by parts of pools, too: no rank gets all of
    // either.
    drawn[i] = {(position << 20) / pool_size(pool), pool, position};
  }
  std::sort(drawn.begin(), drawn.end());
  for (std::uint64_t i = 0; i < count; ++i) samples[i] = row_at(drawn[i].pool, drawn[i].position);
  return samples;
}

}  // namespace motley::train
