// What the values of a BERT file come to, for people who look at it.
#pragma once

#include <cstdint>

#include "io/row_source.h"

namespace motley::io {

struct BertValues {
  std::uint64_t smallest_id = 0, largest_id = 0;  // of input_ids
  std::uint64_t tokens = 0;                       // positions where input_mask is 1
};

// Reads the first `rows` rows of a file (packed, or one shard) and checks them as a run would: Error(input)
// as from BertShardFile::decode and check_bert_rows.
BertValues read_bert_values(const RowSource& source, std::uint64_t rows);

}  // namespace motley::io
