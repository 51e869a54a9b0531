// The packed form of BERT data: one contiguous, uncompressed HDF5 data set `samples` of a compound type whose
// members are those of the record, so that a sample is one read and h5py sees a structured array.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <string>

#include "io/bert_record.h"
#include "io/dataset_info.h"

namespace motley::io {

struct PackedBert {
  BertLayout layout;
  std::uint64_t rows = 0;
  DatasetInfo info;  // of `samples`
};

// Whether the open file has a data set `samples`.
bool has_packed_bert(hid_t file);

// Compares the members of the compound type with those of a record: names, types, lengths and offsets.
// Error(input) names the first that differs; also when `samples` is empty, chunked or compressed.
PackedBert describe_packed_bert(hid_t file, const std::string& path);

}  // namespace motley::io
