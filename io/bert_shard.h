// Writes BERT training data as the scripts of NVIDIA and HetSeq have it: an HDF5 file with a row per
// sequence, gzip-compressed in chunks of whole rows.
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

// Data sets: input_ids int32 (N, S), input_mask int8 (N, S), segment_ids int8 (N, S), masked_lm_positions
// int32 (N, P), masked_lm_ids int32 (N, P), next_sentence_labels int8 (N). What is behind the last token or
// prediction of a row is 0. Nothing in the file depends on the time or the place of its making.
class BertShard {
 public:
  static constexpr std::uint64_t chunk_rows = 1024;

  explicit BertShard(const ShardLayout& layout);
  ~BertShard();
  BertShard(const BertShard&) = delete;
  BertShard& operator=(const BertShard&) = delete;

  // `ids` [n], n <= S: [CLS] A [SEP] B [SEP], of which the first `first_segment` are segment 0. `positions`
  // and `labels` [<= P].
  void add(std::span<const std::int32_t> ids, std::size_t first_segment,
           std::span<const std::int32_t> positions, std::span<const std::int32_t> labels, bool random_next);
  std::uint64_t rows() const;

  // Writes the file, which must not be there yet, and fsyncs it. It is made in memory before, because HDF5
  // does not recover from a disk that is full. Error(input) when it cannot be written; what was is then
  // removed.
  void write(const std::string& path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::io
