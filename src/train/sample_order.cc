#include "train/sample_order.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "core/permutation.h"

namespace motley::train {
namespace {

// Parts of a pool that places are spread over, and the fewest rows of a part: with fewer, the first places of
// a small pool would be predictable.
constexpr std::uint64_t largest_parts = 64, fewest_rows_per_part = 64;

std::uint64_t parts_of(std::uint64_t pool_rows) {
  return std::clamp<std::uint64_t>(pool_rows / fewest_rows_per_part, 1, largest_parts);
}

// Every permutation of an epoch has a number of its own; 0 permutes the blocks.
std::uint64_t stream(bool rows, std::size_t pool, std::uint64_t index) {
  MOTLEY_CHECK(index < (std::uint64_t{1} << 27) && pool + 1 < (std::size_t{1} << 24));
  return (static_cast<std::uint64_t>(pool + 1) << 28) | (index << 1) | (rows ? 1 : 0);
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
      pools_.push_back({i, place});
      in_pool = 0;
    }
    order_[i] = permuted(i);
    place += blocks_[order_[i]].rows;
    in_pool += blocks_[order_[i]].rows;
    first_place_.push_back(place);
  }
  pools_.push_back({order_.size(), place});
}

std::uint64_t SampleOrder::pool_size(std::size_t pool) const {
  return pools_[pool + 1].first_place - pools_[pool].first_place;
}

// Which row of the pool, counted through its blocks, stands at `place` (counted from the pool's first). The pool
// is cut into equal parts, the first ones a row longer; a run of as many places takes the next row of each
// part's own permutation, in an order of its own.
std::uint64_t SampleOrder::position_in_pool(std::size_t pool, std::uint64_t place) const {
  const std::uint64_t rows = pool_size(pool), parts = parts_of(rows);
  const std::uint64_t run = place / parts, short_rows = rows / parts, longer = rows % parts;
  const auto epoch = static_cast<std::uint32_t>(epoch_);
  // The last run is of the longer parts alone.
  const std::uint64_t parts_of_run = run < short_rows ? parts : longer;
  const KeyedPermutation which(parts_of_run, options_.seed, epoch, stream(false, pool, run));
  const std::uint64_t part = which(place % parts);
  const std::uint64_t part_rows = short_rows + (part < longer ? 1 : 0);
  const KeyedPermutation in_part(part_rows, options_.seed, epoch, stream(true, pool, part));
  return part * short_rows + std::min(part, longer) + in_part(run);
}

std::uint64_t SampleOrder::row_at(std::size_t pool, std::uint64_t position) const {
  const std::uint64_t place = pools_[pool].first_place + position;
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
  const auto after =
      std::upper_bound(pools_.begin(), pools_.end(), first,
                       [](std::uint64_t place, const Pool& pool) { return place < pool.first_place; });
  auto pool = static_cast<std::size_t>(after - pools_.begin()) - 1;
  for (std::uint64_t i = 0; i < count; ++i) {
    while (first + i >= pools_[pool + 1].first_place) ++pool;
    const std::uint64_t position = position_in_pool(pool, first + i - pools_[pool].first_place);
    // A step that ends one pool and begins the next is sorted by parts of pools, too: no rank gets all of either.
    drawn[i] = {(position << 20) / pool_size(pool), pool, position};
  }
  std::sort(drawn.begin(), drawn.end());
  for (std::uint64_t i = 0; i < count; ++i) samples[i] = row_at(drawn[i].pool, drawn[i].position);
  return samples;
}

}  // namespace motley::train
