// A data set seen as rows of bytes in a file, or in several: what a reader needs to know to fetch samples by
// index without looking for them again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "io/bert_record.h"

namespace motley::io {

// One HDF5 data set, seen row by row along its first dimension.
struct Field {
  std::string name;               // "images"
  DType dtype = DType::u8;        // little-endian in the file
  Shape row;                      // shape of one row; rank 0 for a scalar per sample
  bool packed = true;             // contiguous and uncompressed: row i lies at file_offset + i * row_bytes()
  std::uint64_t file_offset = 0;  // of row 0, when packed
  std::string why_unpacked = {};  // when not packed, what it is instead: "chunked and compressed (gzip 4)"

  std::size_t row_bytes() const { return static_cast<std::size_t>(row.elements()) * size_of(dtype); }
};

// One file of a data set that is spread over several, or whose rows have to be decoded block by block.
struct Shard {
  std::string path;
  std::uint64_t rows = 0;
  std::uint64_t block_rows = 0;  // rows that are decoded together; the last block of a shard is shorter
  bool operator==(const Shard&) const = default;
};

// What an image set says of itself in attributes, or was found to have.
struct ImageFacts {
  std::int64_t classes = 0;             // 0: not known
  std::vector<double> mean, deviation;  // per channel, of pixels scaled to [0, 1]; empty: not known
  bool operator==(const ImageFacts&) const = default;
};

struct RowSource {
  std::string path;
  std::uint64_t rows = 0;
  std::vector<Field> fields;

  // Rows count through the shards in this order. Empty for a single file that is read as it lies.
  std::vector<Shard> shards = {};
  // Images.
  std::optional<ImageFacts> images = {};
  // BERT samples: one field of records, which have this layout and stay within these limits.
  std::optional<BertLayout> bert = {};
  BertLimits limits = {};
  // vocabulary_fingerprint() of the vocabulary that the ids count through; empty when the files do not say.
  std::string vocab_xxh3 = {};

  bool packed() const;
  // "FILE: row 17": for sentences about a row; the file is the shard's own, and so is the number.
  std::string where(std::uint64_t row) const;
  // For sending over MPI from the rank that opened the file.
  std::string to_json() const;
  static RowSource from_json(const std::string& text);
};

}  // namespace motley::io
