<<<<<<< HEAD
// One HDF5 shard of BERT samples: what it holds, and its rows as records.
#pragma once

#include <hdf5.h>
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/bert_record.h"
#include "io/dataset_info.h"
#include "io/hdf5.h"

namespace motley::io {

struct BertShardHeader {
  std::uint64_t rows = 0;
  std::int64_t seq_length = 0, predictions = 0;
  std::uint64_t block_rows = 0;  // rows that are best decoded together
};

// Looks at the data sets of an open shard. Error(input) names the data set that is missing, has another shape or
// type than a BERT shard's, or has no samples.
BertShardHeader describe_bert_shard(hid_t file, const std::string& path);

// Decodes blocks of rows. Chunks that are not compressed, or compressed by gzip (with or without the shuffle
// filter), are fetched as they lie and undone here, outside of HDF5 and its mutex, straight into the records;
// anything else is read through HDF5, the rows of a block at once.
class BertShardFile {
 public:
  // Error(input) when the shard is not what it was described as.
  BertShardFile(const std::string& path, std::uint64_t rows, const BertLayout& layout,
                const BertLimits& limits);
  ~BertShardFile();
  BertShardFile(const BertShardFile&) = delete;
  BertShardFile& operator=(const BertShardFile&) = delete;

  // The records of rows [first, first + count) into `out`, count x layout.row_bytes() bytes. Error(input) for data
  // that is damaged, and naming the row and column of a value that is out of range.
  void decode(std::uint64_t first, std::uint64_t count, std::byte* out);

 private:
  struct Column;
  // Where decoded values lie: rows [first_row, ...) and columns [first_column, ...) of a data set.
  struct Tile {
    std::uint64_t first_row = 0, rows = 0;
    std::size_t first_column = 0, columns = 0, columns_between_rows = 0;
    const std::byte* values = nullptr;
  };
  struct Target {
    std::uint64_t first = 0, count = 0;
    std::byte* out = nullptr;
  };
  void decode_chunks(const Column& column, const Target& target);
  void decode_through_hdf5(const Column& column, const Target& target);
  bool fetch_chunk(const Column& column, const std::vector<hsize_t>& offset, std::uint32_t& skipped);
  const std::byte* undo_filters(const Column& column, std::uint32_t skipped, const std::string& where);
  void inflate_into(std::vector<std::byte>& out, const std::string& where);
  void store(const Column& column, const Tile& tile, const Target& target);
  template <class From, class To>
  void store_as(const Column& column, const Tile& tile, const Target& target);
  template <class From>
  void store_from(const Column& column, const Tile& tile, const Target& target);
  template <class From>
  void fail_for_value(const Column& column, const Tile& tile) const;

  std::string path_;
  BertLayout layout_;
  BertLimits limits_;
  Hdf5Handle file_;
  std::vector<Column> columns_;
  z_stream stream_{};
  std::vector<std::byte> raw_, plain_, narrow_;  // kept between chunks
=======
// Writes BERT training data as the scripts of NVIDIA and HetSeq have it: an HDF5 file with a row per sequence,
// gzip-compressed in chunks of whole rows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>

namespace motley::io {

using ShardAttribute = std::variant<std::int64_t, double, std::string>;

struct ShardLayout {
  std::int64_t sequence = 128;   // S
  std::int64_t predictions = 0;  // P; 0: masked_lm_positions and masked_lm_ids are left out
  unsigned gzip_level = 4;       // 0 to 9; 0 is no compression
  std::map<std::string, ShardAttribute> attributes;  // of the file
};

// Data sets: input_ids int32 (N, S), input_mask int8 (N, S), segment_ids int8 (N, S), masked_lm_positions int32
// (N, P), masked_lm_ids int32 (N, P), next_sentence_labels int8 (N). What is behind the last token or prediction
// of a row is 0. Nothing in the file depends on the time or the place of its making.
class BertShard {
 public:
  static constexpr std::uint64_t chunk_rows = 1024;

  explicit BertShard(const ShardLayout& layout);
  ~BertShard();
  BertShard(const BertShard&) = delete;
  BertShard& operator=(const BertShard&) = delete;

  // `ids` [n], n <= S: [CLS] A [SEP] B [SEP], of which the first `first_segment` are segment 0. `positions` and
  // `labels` [<= P].
  void add(std::span<const std::int32_t> ids, std::size_t first_segment,
           std::span<const std::int32_t> positions, std::span<const std::int32_t> labels, bool random_next);
  std::uint64_t rows() const;

  // Writes the file, which must not be there yet, and fsyncs it. It is made in memory before, because HDF5 does
  // not recover from a disk that is full. Error(input) when it cannot be written; what was is then removed.
  void write(const std::string& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
>>>>>>> s3/text
};

}  // namespace motley::io
