#include "train/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "balance/shares.h"

namespace motley::train {
namespace {

OrderOptions sharded(const std::vector<ShardSize>& shards, std::uint64_t pool_rows) {
  OrderOptions options;
  options.seed = 11;
  options.shards = shards;
  options.pool_rows = pool_rows;
  for (const ShardSize& shard : shards) options.samples += shard.rows;
  return options;
}

// All places of an epoch, taken in steps of `batch`.
std::vector<std::uint64_t> epoch_of(const OrderOptions& options, int epoch, std::uint64_t batch) {
  SampleOrder order(options);
  std::vector<std::uint64_t> samples;
  for (std::uint64_t first = 0; first < options.samples; first += batch) {
    const auto step = order.step(epoch, first, std::min(batch, options.samples - first));
    samples.insert(samples.end(), step.begin(), step.end());
  }
  return samples;
}

// Which block a sample lies in, counted over all shards.
std::uint64_t block_of(const OrderOptions& options, std::uint64_t sample) {
  std::uint64_t blocks = 0;
  for (const ShardSize& shard : options.shards) {
    if (sample < shard.rows) return blocks + sample / shard.block_rows;
    sample -= shard.rows;
    blocks += (shard.rows + shard.block_rows - 1) / shard.block_rows;
  }
  return blocks;
}

// 40 shards of unequal lengths, some shorter than a block: about 1000 blocks of 100 rows in all.
OrderOptions large() {
  std::vector<ShardSize> shards;
  for (std::uint64_t i = 0; i < 40; ++i) shards.push_back({i == 7 ? 30 : 2000 + i * 53, 100});
  return sharded(shards, 10000);
}

TEST(SampleOrder, every_epoch_has_every_sample_once) {
  const std::vector<std::vector<ShardSize>> layouts = {
      {}, {{1, 1}}, {{7, 3}}, {{100, 10}, {3, 10}, {57, 19}}, {{1000, 1000}}, {{997, 1}, {64, 64}, {65, 64}}};
  for (const auto& layout : layouts) {
    for (const std::uint64_t pool : {1, 2, 30, 128, 500, 100000}) {
      OrderOptions options = sharded(layout, pool);
      if (layout.empty()) options.samples = 1000;
      for (const std::uint64_t batch : {1, 7, 64, 1000}) {
        std::vector<std::uint64_t> samples = epoch_of(options, 3, batch);
        std::sort(samples.begin(), samples.end());
        std::vector<std::uint64_t> all(options.samples);
        std::iota(all.begin(), all.end(), 0);
        ASSERT_EQ(samples, all) << layout.size() << " shards, pool " << pool << ", batch " << batch;
      }
    }
  }
  std::vector<std::uint64_t> samples = epoch_of(large(), 1, 96);
  std::sort(samples.begin(), samples.end());
  for (std::uint64_t i = 0; i < samples.size(); ++i) ASSERT_EQ(samples[i], i);
}

// Law 1: a place is the same sample in whatever steps the epoch is taken, and whatever was asked before.
TEST(SampleOrder, a_place_is_one_sample_whoever_asks) {
  const OrderOptions options = large();
  SampleOrder order(options);
  const std::vector<std::uint64_t> whole = epoch_of(options, 2, 1);
  for (const std::uint64_t first : {0, 9990, 40000, 20, 60001}) {
    order.step(static_cast<int>(first % 5), 3, 10);  // another epoch in between
    const std::vector<std::uint64_t> step = order.step(2, first, 300);
    EXPECT_EQ(std::set<std::uint64_t>(step.begin(), step.end()),
              std::set<std::uint64_t>(whole.begin() + static_cast<std::ptrdiff_t>(first),
                                      whole.begin() + static_cast<std::ptrdiff_t>(first) + 300))
        << "from place " << first;
  }
}

TEST(SampleOrder, seeds_and_epochs_give_other_orders_and_ones_of_their_own) {
  OrderOptions options = large();
  const auto same = [](const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
    int count = 0;
    for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
    return count;
  };
  const auto first = epoch_of(options, 1, 1);
  EXPECT_LT(same(first, epoch_of(options, 2, 1)), 10);
  options.seed = 12;
  EXPECT_LT(same(first, epoch_of(options, 1, 1)), 10);
}

// What a full shuffle would do by chance, give or take; rows in the order of the file, or whole blocks one
// after the other, are far off in all three.
TEST(SampleOrder, neighbours_come_from_everywhere_in_the_pool) {
  const OrderOptions options = large();
  const std::vector<std::uint64_t> order = epoch_of(options, 1, 1);
  std::uint64_t same_block = 0, next_row = 0;
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    same_block += block_of(options, order[i]) == block_of(options, order[i + 1]);
    next_row += order[i] + 1 == order[i + 1];
  }
  // A pool has 100 blocks: 1 % of the neighbours share one by chance.
  EXPECT_LT(same_block, order.size() / 80);
  EXPECT_LT(next_row, 40u);  // 1 in 10000 by chance: 9 of the 90000

  // Blocks of 64 places see most of the pool's 100 blocks: 47 different ones if drawn freely.
  std::size_t distinct = 0, groups = 0;
  for (std::size_t first = 0; first + 64 <= order.size(); first += 64, ++groups) {
    std::set<std::uint64_t> blocks;
    for (std::size_t i = first; i < first + 64; ++i) blocks.insert(block_of(options, order[i]));
    distinct += blocks.size();
  }
  EXPECT_GT(static_cast<double>(distinct) / static_cast<double>(groups), 44.0);
}

// Where the samples of a block stand within their pool: a chi-squared test of uniformity over tenths of the
// pool.
TEST(SampleOrder, the_samples_of_a_block_are_spread_over_its_pool) {
  const OrderOptions options = sharded(std::vector<ShardSize>(10, {1000, 100}), 10000);  // one pool
  std::map<std::uint64_t, std::vector<double>> tenths;
  constexpr int epochs = 20;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    const std::vector<std::uint64_t> order = epoch_of(options, epoch, 1);
    for (std::size_t place = 0; place < order.size(); ++place) {
      auto& counts = tenths[block_of(options, order[place])];
      counts.resize(10);
      ++counts[place / 1000];
    }
  }
  ASSERT_EQ(tenths.size(), 100u);
  double chi_squared = 0;
  for (const auto& [block, counts] : tenths) {
    for (const double count : counts) chi_squared += std::pow(count - 10.0 * epochs, 2) / (10.0 * epochs);
  }
  EXPECT_LT(chi_squared,
            1100.0);  // 900 degrees of freedom, and a little less because places are spread evenly
}

// The point of it: ranks share the decoding. Every block is decoded by about one rank, whatever the shares,
// where unsorted steps would have every rank decode every block.
void expect_little_decoded_twice(const std::vector<double>& weights, std::int64_t batch,
                                 double most_per_block) {
  const OrderOptions options = large();
  SampleOrder order(options);
  const std::vector<std::int64_t> shares = balance::proportional_shares(batch, weights);
  std::vector<std::set<std::uint64_t>> blocks_of_rank(weights.size());
  std::set<std::uint64_t> all;
  const auto step_rows = static_cast<std::uint64_t>(batch);
  for (std::uint64_t first = 0; first + step_rows <= options.samples; first += step_rows) {
    const std::vector<std::uint64_t> samples = order.step(1, first, step_rows);
    std::size_t slot = 0;
    for (std::size_t rank = 0; rank < weights.size(); ++rank) {
      for (std::int64_t i = 0; i < shares[rank]; ++i, ++slot) {
        blocks_of_rank[rank].insert(block_of(options, samples[slot]));
        all.insert(block_of(options, samples[slot]));
      }
    }
  }
  std::size_t decoded = 0;
  for (const auto& blocks : blocks_of_rank) decoded += blocks.size();
  const double per_block = static_cast<double>(decoded) / static_cast<double>(all.size());
  EXPECT_LT(per_block, most_per_block) << weights.size() << " ranks, batch " << batch;
  // A rank decodes its share, and the blocks at its edges.
  for (std::size_t rank = 0; rank < weights.size(); ++rank) {
    const double share = static_cast<double>(shares[rank]) / static_cast<double>(batch);
    EXPECT_LT(static_cast<double>(blocks_of_rank[rank].size()),
              (share + 0.10) * static_cast<double>(all.size()));
  }
}

TEST(SampleOrder, ranks_decode_about_their_share_of_the_blocks) {
  expect_little_decoded_twice({1, 1}, 64, 1.1);
  expect_little_decoded_twice({1, 1, 1, 1, 1, 1, 1, 1}, 64, 1.35);
  expect_little_decoded_twice({1, 2, 5}, 256, 1.15);
  expect_little_decoded_twice({1, 1, 1, 1}, 100, 1.4);
}

}  // namespace
}  // namespace motley::train
