// BERT training data: HDF5 shards as NVIDIA's BERT scripts and HetSeq make them, or one packed file.
//
// A shard has the data sets `input_ids`, `input_mask` and `segment_ids` (N, S), `masked_lm_positions` and
// `masked_lm_ids` (N, P), and `next_sentence_labels` (N), of any integer types, compressed or not. Without
// the two masked_lm_* its samples are to be masked while training. A packed file has one data set, `samples`,
// of records (io/bert_record.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/bert_record.h"
#include "io/row_source.h"

namespace motley::io {

// The files of a subset of --data, in alphabetical order.
//
// `data` is a directory D, a file, or a list of files with commas between them; files are the subset "train".
// In D, a subset is D/SUBSET.h5, or else the HDF5 files of the directory D/SUBSET; for "train" it may also be
// the HDF5 files of D itself but those named after another subset (valid, validation, dev, test, or one of
// `others`). HDF5 files are those that end in .h5 or .hdf5. Empty when there is no such subset; Error(input)
// when `data` does not exist, and for a directory D/SUBSET without HDF5 files.
std::vector<std::string> find_bert_subset(const std::string& data, const std::string& subset,
                                          const std::vector<std::string>& others = {});
// The same; Error(input) when there is no such subset.
std::vector<std::string> bert_subset_paths(const std::string& data, const std::string& subset,
                                           const std::vector<std::string>& others = {});

// Opens the header of every file (the first `num_file` ones unless that is 0) on this rank alone. The source
// has one field, `samples`; its record has the id type that limits.vocab_size needs, or, for a packed file,
// the one of the file. Error(input) with file, data set and what was expected: a data set is missing, has
// another shape or type, is empty or has another number of samples than the others; files differ in tokens or
// predictions per sample; samples longer than limits.max_position; a packed file among others.
RowSource describe_bert_set(const std::vector<std::string>& paths, std::int64_t num_file,
                            const BertLimits& limits);

}  // namespace motley::io
