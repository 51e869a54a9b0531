// What an HDF5 shard of BERT samples holds.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <string>

namespace motley::io {

struct BertShardHeader {
  std::uint64_t rows = 0;
  std::int64_t seq_length = 0, predictions = 0;
  std::uint64_t block_rows = 0;  // rows that are best decoded together
};

// Looks at the data sets of an open shard. Error(input) names the data set that is missing, has another shape
// or type than a BERT shard's, or has no samples, more than the file can hold, or chunks too large to decode.
BertShardHeader describe_bert_shard(hid_t file, const std::string& path);

}  // namespace motley::io
