// The rows of one HDF5 shard of BERT samples, as records.
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

  // The records of rows [first, first + count) into `out`, count x layout.row_bytes() bytes. Error(input) for
  // data that is damaged, and naming the row of what is wrong in it: a value that is out of range, or what
  // bert_mask_problem() says.
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
};

}  // namespace motley::io
