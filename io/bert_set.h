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
// In D, a subset S is the first of these that there is:
//   - the file D/S.h5 or D/S.hdf5;
//   - the HDF5 files of the directory D/S;
//   - the HDF5 files of D whose name has S in it as a word, with no letter or digit right before or after it;
//     "training" is as good as "train", and "validation" and "dev" are as good as "valid";
//   - for "train", the HDF5 files of D but those that have another subset as a word: valid, validation, dev,
//     test, eval, or one of `others`.
// So wikicorpus_en_training_0.hdf5 is of "train", and wikicorpus_en_test_0.hdf5 of "test". HDF5 files are
// those that end in .h5 or .hdf5, but none that begins with a dot, which is not finished. Empty when there is
// no such subset. Error(input) when `data` does not exist or has the same file twice, for a directory D/S
// without HDF5 files, and when of the files of D named ...-k-of-N.h5 some are missing.
std::vector<std::string> find_bert_subset(const std::string& data, const std::string& subset,
                                          const std::vector<std::string>& others = {});
// The same; Error(input) when there is no such subset.
std::vector<std::string> bert_subset_paths(const std::string& data, const std::string& subset,
                                           const std::vector<std::string>& others = {});

// Opens the header of every file (the first `num_file` ones unless that is 0) on this rank alone. The source
// has one field, `samples`; its record has the id type that limits.vocab_size needs, or, for a packed file,
// the one of the file. Error(input) with file, data set and what was expected: a data set is missing, has
// another shape or type, is empty or has another number of samples than the others; files differ in tokens or
// predictions per sample, or come from different vocabularies; samples longer than limits.max_position; more
// blocks than can be shuffled; a packed file among others.
RowSource describe_bert_set(const std::vector<std::string>& paths, std::int64_t num_file,
                            const BertLimits& limits);

}  // namespace motley::io
