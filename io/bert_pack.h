// Packing: shards decoded once, into the one file whose rows every later epoch reads as they lie.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/descriptor.h"
#include "io/bert_record.h"
#include "io/row_source.h"

namespace motley::io {

class BertShardFile;

// Makes a file with `rows` samples whose contents are to be written from the returned offset on, row by row.
// `vocab_xxh3` is kept as an attribute, unless it is empty. Error(input) when it cannot be written, also when
// files may not become that large.
std::uint64_t create_packed_bert(const std::string& path, const BertLayout& layout, std::uint64_t rows,
                                 const std::string& vocab_xxh3 = {});

// Consecutive rows of one shard: a block.
struct ShardBlock {
  std::size_t shard = 0;
  std::uint64_t first = 0, rows = 0;  // in the shard
  std::uint64_t first_in_set = 0;
};

// The blocks of rank `rank`, in order: each rank has its part of the set, so that it opens few shards.
std::vector<ShardBlock> blocks_of_rank(const RowSource& source, int rank, int ranks);

// Decodes blocks and writes them where they belong. Ranks write different rows of one file without knowing of
// each other.
class BertPacker {
 public:
  // `source`: shards without limits, so that every id is decoded. The file was made by create_packed_bert
  // with `id` as the type of ids; its rows begin at `offset`.
  BertPacker(const RowSource& source, const std::string& file, std::uint64_t offset, DType id);
  ~BertPacker();
  BertPacker(const BertPacker&) = delete;
  BertPacker& operator=(const BertPacker&) = delete;

  // Error(input) for what is wrong with a shard, or when the disk is full. The rows of a block whose ids do
  // not fit into `id` are not written: see largest_id(). Error(device) when a block does not fit into memory.
  void pack(const ShardBlock& block);
  // The largest id of all blocks so far.
  std::uint64_t largest_id() const { return largest_id_; }
  // Flushes to the disk.
  void finish() { file_.sync(); }

 private:
  void decode_and_write(const ShardBlock& block);

  const RowSource& source_;
  BertLayout packed_;
  Descriptor file_;
  std::uint64_t offset_, largest_id_ = 0;
  std::size_t open_shard_ = 0;
  std::unique_ptr<BertShardFile> shard_;
  std::vector<std::byte> wide_, narrow_;  // records with ids of 32 bits, and as they are written
};

}  // namespace motley::io
