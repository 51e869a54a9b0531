// In which order an epoch goes through the samples. A pure function of (seed, epoch, place) and of how the
// data set is laid out, never of ranks and shares (law 1): place p of the epoch is a sample whoever computes
// it.
//
// A file whose rows are read one by one is shuffled as a whole, by a keyed permutation of its rows.
//
// Shards that have to be decoded block by block are shuffled in two stages, so that each block is decoded
// once per epoch: the blocks of all shards are permuted, and taken in that order into pools of at least
// `pool_rows` rows; the rows of a pool are permuted among themselves. (The stages are those of a shuffle
// buffer over shuffled files; permutations instead of a buffer make every place of the order computable
// without the ones before it.) Within a pool, places are spread evenly: K <= 64 places that follow each other
// have one row from each K-th of the pool, so that a batch is a stratified sample of it.
//
// A step takes the next B places and sorts them by where in their pool they lie. So the slots of a rank,
// which are neighbours, come from its own part of each pool's blocks, and a rank decodes about its share of
// them.
#pragma once

#include <cstdint>
#include <vector>

namespace motley::train {

// The sizes of a shard: its rows, and how many of them are decoded together (the last block may be shorter).
struct ShardSize {
  std::uint64_t rows = 0, block_rows = 0;
};

struct OrderOptions {
  std::uint64_t samples = 0;
  std::uint64_t seed = 0;
  std::vector<ShardSize> shards;    // empty: rows are read one by one
  std::uint64_t pool_rows = 65536;  // --shuffle-pool; only for shards
};

class SampleOrder {
 public:
  explicit SampleOrder(const OrderOptions& options);

  // The samples of one step, by slot: those at the places [first, first + count) of the shuffled epoch.
  std::vector<std::uint64_t> step(int epoch, std::uint64_t first, std::uint64_t count);

 private:
  struct Block {
    std::uint64_t first_row, rows;
  };
  void arrange(int epoch);
  std::uint64_t position_in_pool(std::size_t pool, std::uint64_t place) const;
  std::uint64_t pool_size(std::size_t pool) const;
  std::uint64_t row_at(std::size_t pool, std::uint64_t position) const;

  OrderOptions options_;
  std::vector<Block> blocks_;  // of all shards, in their order
  // Of the epoch at hand.
  int epoch_ = -1;
  std::vector<std::size_t> order_;          // of the blocks
  std::vector<std::uint64_t> first_place_;  // of order_[i]; one more at the end
  std::vector<std::uint64_t> pools_;        // the first place of each; one more at the end
};

}  // namespace motley::train
