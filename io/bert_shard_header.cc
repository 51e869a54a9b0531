#include "io/bert_shard_header.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "io/bert_record.h"
#include "io/dataset_info.h"
#include "io/hdf5.h"

namespace motley::io {
namespace {

// A block has at least this many rows, so that files of small chunks, or none, are not read in small pieces.
constexpr std::uint64_t fewest_block_rows = 1024, block_rows_without_chunks = 2048;

DatasetInfo describe_column(hid_t file, const std::string& path, const char* name, std::size_t dimensions) {
  DatasetInfo info = open_and_describe(file, path, name);
  if (!info.is_integer())
    fail(ExitCode::input, "{}: data set `{}` holds {}; expected an integer type", path, name, info.type);
  if (info.extents.size() != dimensions) {
    fail(ExitCode::input, "{}: data set `{}` has the shape {}; expected {}", path, name, info.shape(),
         dimensions == 1 ? "one dimension [samples]" : "two dimensions [samples, numbers per sample]");
  }
  return info;
}

void expect_shape(const std::string& path, const DatasetInfo& info, const DatasetInfo& like) {
  if (info.extents[0] != like.extents[0]) {
    fail(ExitCode::input, "{}: `{}` has {} samples and `{}` has {}; expected as many", path, like.name,
         like.extents[0], info.name, info.extents[0]);
  }
  if (info.extents.size() > 1 && info.extents[1] != like.extents[1]) {
    fail(ExitCode::input, "{}: data set `{}` has the shape {}; expected {}, the shape of `{}`", path,
         info.name, info.shape(), like.shape(), like.name);
  }
}

void expect_contents(const std::string& path, const DatasetInfo& info) {
  if (info.extents[0] == 0)
    fail(ExitCode::input, "{}: data set `{}` is empty; expected at least one sample", path, info.name);
  if (!info.written)
    fail(ExitCode::input, "{}: `{}` has no data: it was created but never written", path, info.name);
}

// A file of a few bytes can claim any number of samples, and gzip makes at most 1032 bytes of one. What else
// can compress is not judged.
void expect_stored(const std::string& path, const DatasetInfo& ids) {
  double most_from_a_byte = 1;
  for (const int filter : ids.filters) {
    if (filter == H5Z_FILTER_DEFLATE) most_from_a_byte *= 1032;
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      return;
  }
  const double claimed = static_cast<double>(ids.extents[0]) * static_cast<double>(ids.extents[1]) *
                         static_cast<double>(size_of(*ids.dtype));
  const bool too_many = claimed > most_from_a_byte * static_cast<double>(ids.stored_bytes);
  if (!ids.past_end && (ids.chunk.empty() || !too_many)) return;
  fail(ExitCode::input,
       "{}: data set `{}` has the shape {}, and the file does not hold that much of it; expected all samples "
       "to be there",
       path, ids.name, ids.shape());
}

std::uint64_t choose_block_rows(const DatasetInfo& ids) {
  std::uint64_t rows = block_rows_without_chunks;
  if (!ids.chunk.empty()) {
    rows = ids.chunk[0];
    if (rows < fewest_block_rows) rows *= (fewest_block_rows + rows - 1) / rows;
  }
  return std::min(rows, ids.extents[0]);
}

// A block is decoded as a whole. Small compressed chunks can become too large for any memory.
void expect_block_size(const std::string& path, const BertShardHeader& shard, const DatasetInfo& ids) {
  constexpr std::uint64_t most_bytes = std::uint64_t{8} << 30;
  const std::size_t row_bytes = BertLayout{shard.seq_length, shard.predictions, DType::u32}.row_bytes();
  if (shard.block_rows <= most_bytes / row_bytes) return;
  fail(ExitCode::input,
       "{}: data set `input_ids` lies in {}, so that {} samples have to be decoded together; expected chunks "
       "of at most {} samples",
       path, ids.layout, shard.block_rows, most_bytes / row_bytes);
}

}  // namespace

BertShardHeader describe_bert_shard(hid_t file, const std::string& path) {
  const Hdf5Lock lock;
  const DatasetInfo ids = describe_column(file, path, "input_ids", 2);
  if (ids.extents[1] == 0 || std::cmp_greater(ids.extents[1], longest_sequence)) {
    fail(ExitCode::input, "{}: data set `input_ids` has the shape {}; expected 1 to {} tokens per sample",
         path, ids.shape(), longest_sequence);
  }
  std::vector<DatasetInfo> all = {ids};
  for (const char* name : {"input_mask", "segment_ids"}) {
    all.push_back(describe_column(file, path, name, 2));
    expect_shape(path, all.back(), ids);
  }
  BertShardHeader shard;
  const bool masked = H5Lexists(file, "masked_lm_positions", H5P_DEFAULT) > 0 ||
                      H5Lexists(file, "masked_lm_ids", H5P_DEFAULT) > 0;
  if (masked) {
    const DatasetInfo positions = describe_column(file, path, "masked_lm_positions", 2);
    if (positions.extents[0] != ids.extents[0]) expect_shape(path, positions, ids);
    if (positions.extents[1] == 0 || positions.extents[1] > ids.extents[1]) {
      fail(ExitCode::input,
           "{}: data set `masked_lm_positions` has the shape {}; expected 1 to {} per sample", path,
           positions.shape(), ids.extents[1]);
    }
    all.push_back(positions);
    all.push_back(describe_column(file, path, "masked_lm_ids", 2));
    expect_shape(path, all.back(), positions);
    shard.predictions = static_cast<std::int64_t>(positions.extents[1]);
  }
  all.push_back(describe_column(file, path, "next_sentence_labels", 1));
  expect_shape(path, all.back(), ids);
  for (const DatasetInfo& info : all) expect_contents(path, info);
  expect_stored(path, ids);
  shard.rows = ids.extents[0];
  shard.seq_length = static_cast<std::int64_t>(ids.extents[1]);
  shard.block_rows = choose_block_rows(ids);
  expect_block_size(path, shard, ids);
  return shard;
}

}  // namespace motley::io
