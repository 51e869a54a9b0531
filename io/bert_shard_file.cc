#include "io/bert_shard_file.h"

<<<<<<< HEAD
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "io/bert_check.h"
=======
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/descriptor.h"
#include "core/error.h"
#include "io/hdf5.h"
>>>>>>> s3/text

namespace motley::io {
namespace {

<<<<<<< HEAD
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

std::uint64_t choose_block_rows(const DatasetInfo& ids) {
  std::uint64_t rows = block_rows_without_chunks;
  if (!ids.chunk.empty()) {
    rows = ids.chunk[0];
    if (rows < fewest_block_rows) rows *= (fewest_block_rows + rows - 1) / rows;
  }
  return std::min(rows, ids.extents[0]);
}

}  // namespace

BertShardHeader describe_bert_shard(hid_t file, const std::string& path) {
  const Hdf5Lock lock;
  const DatasetInfo ids = describe_column(file, path, "input_ids", 2);
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
  if (ids.extents[1] == 0 || std::cmp_greater(ids.extents[1], longest_sequence)) {
    fail(ExitCode::input, "{}: data set `input_ids` has the shape {}; expected 1 to {} tokens per sample",
         path, ids.shape(), longest_sequence);
  }
  shard.rows = ids.extents[0];
  shard.seq_length = static_cast<std::int64_t>(ids.extents[1]);
  shard.block_rows = choose_block_rows(ids);
  return shard;
}

// --- Decoding ---------------------------------------------------------------------------------------------

struct BertShardFile::Column {
  BertMember member;
  std::uint64_t largest = 0;
  DatasetInfo info;
  Hdf5Handle dataset;
  bool raw = false;  // its chunks can be undone here

  std::string where(const std::string& path) const {
    return fmt::format("{}: data set `{}`", path, member.name);
  }
  std::size_t element_bytes() const { return size_of(*info.dtype); }
  std::uint64_t chunk_rows() const { return info.chunk[0]; }
  std::size_t chunk_columns() const { return info.chunk.size() > 1 ? info.chunk[1] : 1; }
  std::size_t chunk_bytes() const { return chunk_rows() * chunk_columns() * element_bytes(); }
};

namespace {

// Larger chunks than this would not be fetched whole.
constexpr std::uint64_t chunk_bytes_limit = 1ULL << 30;

// A layer of chunks, so that none is decompressed twice for one block.
std::uint64_t cache_bytes(const DatasetInfo& info) {
  if (info.chunk.empty()) return 1 << 20;
  const std::uint64_t chunk_columns = info.chunk.size() > 1 ? info.chunk[1] : 1;
  const std::uint64_t columns = info.extents.size() > 1 ? info.extents[1] : 1;
  const std::uint64_t chunks = (columns + chunk_columns - 1) / chunk_columns;
  return std::max<std::uint64_t>(1 << 20, chunks * info.chunk[0] * chunk_columns * size_of(*info.dtype));
}

bool can_undo(const DatasetInfo& info) {
#if H5_VERSION_GE(1, 10, 3)
  if (info.chunk.empty() || !info.native) return false;
  std::uint64_t bytes = size_of(*info.dtype);
  for (const std::uint64_t extent : info.chunk) bytes *= extent;
  return bytes <= chunk_bytes_limit && std::all_of(info.filters.begin(), info.filters.end(), [](int filter) {
           return filter == H5Z_FILTER_DEFLATE || filter == H5Z_FILTER_SHUFFLE;
         });
#else
  static_cast<void>(info);
  return false;
#endif
=======
const std::string where = "a shard in memory";

template <class Result>
Result check(Result result, const char* call) {
  if (result < 0) fail_hdf5(where, call, ExitCode::internal);
  return result;
}

// One data set that grows by whole chunks.
struct Column {
  Hdf5Handle dataset;
  hid_t memory = H5I_INVALID_HID;
  std::vector<hsize_t> shape;  // [rows, ...] with rows = written so far

  void append(const void* rows, hsize_t count) {
    std::vector<hsize_t> first(shape.size(), 0), block = shape;
    first[0] = shape[0];
    block[0] = count;
    shape[0] += count;
    check(H5Dset_extent(dataset.get(), shape.data()), "H5Dset_extent");
    const Hdf5Handle file(check(H5Dget_space(dataset.get()), "H5Dget_space"), H5Sclose);
    check(H5Sselect_hyperslab(file.get(), H5S_SELECT_SET, first.data(), nullptr, block.data(), nullptr),
          "H5Sselect_hyperslab");
    const Hdf5Handle space(
        check(H5Screate_simple(static_cast<int>(block.size()), block.data(), nullptr), "H5Screate_simple"),
        H5Sclose);
    check(H5Dwrite(dataset.get(), memory, space.get(), file.get(), H5P_DEFAULT, rows), "H5Dwrite");
  }
};

Column make_column(hid_t file, const char* name, hid_t type, std::vector<hsize_t> row, unsigned gzip_level) {
  Column column;
  column.memory = type;
  column.shape = {0};
  column.shape.insert(column.shape.end(), row.begin(), row.end());
  std::vector<hsize_t> chunk = column.shape, limit = column.shape;
  chunk[0] = BertShard::chunk_rows;
  limit[0] = H5S_UNLIMITED;
  const Hdf5Handle space(
      check(H5Screate_simple(static_cast<int>(column.shape.size()), column.shape.data(), limit.data()),
            "H5Screate_simple"),
      H5Sclose);
  const Hdf5Handle creation(check(H5Pcreate(H5P_DATASET_CREATE), "H5Pcreate"), H5Pclose);
  check(H5Pset_obj_track_times(creation.get(), false), "H5Pset_obj_track_times");
  check(H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data()), "H5Pset_chunk");
  // So that the end of the last chunk does not hold what was in memory.
  const std::int32_t zero = 0;
  check(H5Pset_fill_value(creation.get(), H5T_NATIVE_INT32, &zero), "H5Pset_fill_value");
  check(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_ALLOC), "H5Pset_fill_time");
  if (gzip_level > 0) check(H5Pset_deflate(creation.get(), gzip_level), "H5Pset_deflate");
  const hid_t stored = type == H5T_NATIVE_INT32 ? H5T_STD_I32LE : H5T_STD_I8LE;
  column.dataset = {
      check(H5Dcreate2(file, name, stored, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
            "H5Dcreate2"),
      H5Dclose};
  return column;
}

void add_attribute(hid_t file, const std::string& name, const ShardAttribute& value) {
  Hdf5Handle type;
  const void* data = nullptr;
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    type = {check(H5Tcopy(H5T_STD_I64LE), "H5Tcopy"), H5Tclose};
    data = number;
  } else if (const auto* real = std::get_if<double>(&value)) {
    type = {check(H5Tcopy(H5T_IEEE_F64LE), "H5Tcopy"), H5Tclose};
    data = real;
  } else {
    const auto& text = std::get<std::string>(value);
    type = {check(H5Tcopy(H5T_C_S1), "H5Tcopy"), H5Tclose};
    check(H5Tset_size(type.get(), std::max<std::size_t>(text.size(), 1)), "H5Tset_size");
    check(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "H5Tset_strpad");
    check(H5Tset_cset(type.get(), H5T_CSET_UTF8), "H5Tset_cset");
    data = text.data();
  }
  const Hdf5Handle space(check(H5Screate(H5S_SCALAR), "H5Screate"), H5Sclose);
  const Hdf5Handle attribute(
      check(H5Acreate2(file, name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2"),
      H5Aclose);
  check(H5Awrite(attribute.get(), type.get(), data), "H5Awrite");
}

Hdf5Handle make_file_in_memory() {
  constexpr std::size_t growth = 4 << 20;
  const Hdf5Handle access(check(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate"), H5Pclose);
  check(H5Pset_fapl_core(access.get(), growth, false), "H5Pset_fapl_core");
  return {check(H5Fcreate("shard", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), "H5Fcreate"), H5Fclose};
>>>>>>> s3/text
}

}  // namespace

<<<<<<< HEAD
BertShardFile::BertShardFile(const std::string& path, std::uint64_t rows, const BertLayout& layout,
                             const BertLimits& limits)
    : path_(path), layout_(layout), limits_(limits), file_(open_hdf5(path)) {
  const Hdf5Lock lock;
  const BertShardHeader found = describe_bert_shard(file_.get(), path);
  if (found.rows != rows || found.seq_length != layout.seq_length ||
      found.predictions != layout.predictions) {
    fail(ExitCode::input,
         "{} has {} samples of {} tokens and {} predictions here; {} of {} and {} were expected: is it the "
         "same file "
         "on all machines?",
         path, found.rows, found.seq_length, found.predictions, rows, layout.seq_length, layout.predictions);
  }
  for (const BertMember& member : members_of(layout)) {
    Column column;
    column.member = member;
    column.largest = largest_value(layout, limits, member);
    const std::string name(member.name);
    column.info = open_and_describe(file_.get(), path, name);
    column.raw = can_undo(column.info);
    const std::string where = column.where(path);
    const Hdf5Handle access(MOTLEY_HDF5(where, ExitCode::input, H5Pcreate(H5P_DATASET_ACCESS)), H5Pclose);
    constexpr std::size_t slots = 10007;  // HDF5 asks for a prime
    constexpr double evict_fully_read = 1.0;
    MOTLEY_HDF5(
        where, ExitCode::input,
        H5Pset_chunk_cache(access.get(), slots, column.raw ? 0 : cache_bytes(column.info), evict_fully_read));
    column.dataset = {MOTLEY_HDF5(where, ExitCode::input, H5Dopen2(file_.get(), name.c_str(), access.get())),
                      H5Dclose};
    columns_.push_back(std::move(column));
  }
  if (inflateInit(&stream_) != Z_OK) fail(ExitCode::device, "{}: the memory of this machine ran out", path);
}

BertShardFile::~BertShardFile() {
  inflateEnd(&stream_);
}

void BertShardFile::decode(std::uint64_t first, std::uint64_t count, std::byte* out) {
  for (const Column& column : columns_) {
    if (column.raw) {
      decode_chunks(column, {first, count, out});
    } else {
      decode_through_hdf5(column, {first, count, out});
    }
  }
}

// Fetches a chunk as it lies into raw_. False when it has no place in the file; `skipped` has a bit for each filter
// that the writer left out for this chunk.
bool BertShardFile::fetch_chunk(const Column& column, const std::vector<hsize_t>& offset,
                                std::uint32_t& skipped) {
#if H5_VERSION_GE(1, 10, 3)
  const Hdf5Lock lock;
  hsize_t bytes = 0;
  if (H5Dget_chunk_storage_size(column.dataset.get(), offset.data(), &bytes) < 0 || bytes == 0) return false;
  const std::string where = fmt::format("{}, rows {} on", column.where(path_), offset[0]);
  if (bytes > 2 * chunk_bytes_limit)
    fail(ExitCode::input, "{}: a chunk of {} bytes; expected about {}", where, bytes, column.chunk_bytes());
  raw_.resize(bytes);
  MOTLEY_HDF5(where, ExitCode::input,
              H5Dread_chunk(column.dataset.get(), H5P_DEFAULT, offset.data(), &skipped, raw_.data()));
  return true;
#else
  static_cast<void>(column), static_cast<void>(offset), static_cast<void>(skipped);
  return false;
#endif
}

void BertShardFile::inflate_into(std::vector<std::byte>& out, const std::string& where) {
  inflateReset(&stream_);
  stream_.next_in = reinterpret_cast<Bytef*>(raw_.data());
  stream_.avail_in = static_cast<uInt>(raw_.size());
  stream_.next_out = reinterpret_cast<Bytef*>(out.data());
  stream_.avail_out = static_cast<uInt>(out.size());
  const int result = inflate(&stream_, Z_FINISH);
  if (result == Z_STREAM_END && stream_.avail_out == 0) return;
  const char* reason = stream_.msg != nullptr ? stream_.msg : "its length is wrong";
  fail(ExitCode::input, "{}: a chunk is damaged: {}", where, reason);
}

namespace {

// The shuffle filter puts the first bytes of all elements together, then the second ones.
void unshuffle(const std::byte* from, std::size_t bytes, std::size_t element_bytes, std::byte* to) {
  const std::size_t elements = bytes / element_bytes;
  for (std::size_t byte = 0; byte < element_bytes; ++byte) {
    for (std::size_t i = 0; i < elements; ++i) to[i * element_bytes + byte] = from[byte * elements + i];
  }
}

}  // namespace

const std::byte* BertShardFile::undo_filters(const Column& column, std::uint32_t skipped,
                                             const std::string& where) {
  for (std::size_t i = column.info.filters.size(); i-- > 0;) {
    if ((skipped >> i & 1U) != 0) continue;
    plain_.resize(column.chunk_bytes());
    if (column.info.filters[i] == H5Z_FILTER_DEFLATE) {
      inflate_into(plain_, where);
    } else {
      if (raw_.size() != plain_.size())
        fail(ExitCode::input, "{}: a chunk is damaged: its length is wrong", where);
      unshuffle(raw_.data(), raw_.size(), column.element_bytes(), plain_.data());
    }
    std::swap(raw_, plain_);
  }
  if (raw_.size() != column.chunk_bytes())
    fail(ExitCode::input, "{}: a chunk is damaged: its length is wrong", where);
  return raw_.data();
}

void BertShardFile::decode_chunks(const Column& column, const Target& target) {
  const std::uint64_t rows = column.chunk_rows();
  const std::size_t columns = column.chunk_columns();
  for (std::uint64_t row = target.first / rows * rows; row < target.first + target.count; row += rows) {
    for (std::size_t at = 0; at < column.member.length; at += columns) {
      std::vector<hsize_t> offset = {row};
      if (column.member.array) offset.push_back(at);
      std::uint32_t skipped = 0;
      if (!fetch_chunk(column, offset, skipped)) return decode_through_hdf5(column, target);
      const std::byte* values = undo_filters(column, skipped, column.where(path_));
      Tile tile;
      tile.first_row = std::max(row, target.first);
      tile.rows = std::min(row + rows, target.first + target.count) - tile.first_row;
      tile.first_column = at;
      tile.columns = std::min(columns, column.member.length - at);
      tile.columns_between_rows = columns;
      tile.values = values + (tile.first_row - row) * columns * column.element_bytes();
      store(column, tile, target);
    }
  }
}

void BertShardFile::decode_through_hdf5(const Column& column, const Target& target) {
  const std::string where = column.where(path_);
  const std::size_t length = column.member.length;
  plain_.resize(target.count * length * column.element_bytes());
  {
    const Hdf5Lock lock;
    const int dimensions = column.member.array ? 2 : 1;
    const hsize_t start[] = {target.first, 0}, extent[] = {target.count, length};
    const Hdf5Handle space(MOTLEY_HDF5(where, ExitCode::input, H5Dget_space(column.dataset.get())), H5Sclose);
    const Hdf5Handle memory(
        MOTLEY_HDF5(where, ExitCode::input, H5Screate_simple(dimensions, extent, nullptr)), H5Sclose);
    MOTLEY_HDF5(where, ExitCode::input,
                H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, extent, nullptr));
    MOTLEY_HDF5(fmt::format("{}, rows {} to {}", where, target.first, target.first + target.count - 1),
                ExitCode::input,
                H5Dread(column.dataset.get(), memory_type(*column.info.dtype), memory.get(), space.get(),
                        H5P_DEFAULT, plain_.data()));
  }
  store(column, {target.first, target.count, 0, length, length, plain_.data()}, target);
}

// --- Into the records -------------------------------------------------------------------------------------

namespace {

// Copies `bytes` bytes per row to rows that are `stride` apart. The compiler turns copies of known length into one
// or two instructions; chunks of a few columns have these.
template <std::size_t bytes>
void scatter_rows(const std::byte* from, std::uint64_t rows, std::byte* out, std::size_t stride) {
  for (std::uint64_t row = 0; row < rows; ++row) std::memcpy(out + row * stride, from + row * bytes, bytes);
}

void scatter_rows(const std::byte* from, std::uint64_t rows, std::size_t bytes, std::byte* out,
                  std::size_t stride) {
  if (bytes == 4) return scatter_rows<4>(from, rows, out, stride);
  if (bytes == 8) return scatter_rows<8>(from, rows, out, stride);
  if (bytes == 16) return scatter_rows<16>(from, rows, out, stride);
  for (std::uint64_t row = 0; row < rows; ++row) std::memcpy(out + row * stride, from + row * bytes, bytes);
}

// Narrows values and returns the largest: negative ones become huge, so one comparison with it finds both kinds of
// wrong values, and this loop is vectorised.
template <class From, class To>
std::uint64_t narrow(const From* from, std::size_t count, To* to) {
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto wide = static_cast<std::uint64_t>(from[i]);
    largest = std::max(largest, wide);
    to[i] = static_cast<To>(wide);
  }
  return largest;
}

}  // namespace

template <class From, class To>
void BertShardFile::store_as(const Column& column, const Tile& tile, const Target& target) {
  const auto* values = reinterpret_cast<const From*>(tile.values);
  narrow_.resize(tile.rows * tile.columns * sizeof(To));
  auto* const narrowed = reinterpret_cast<To*>(narrow_.data());
  std::uint64_t largest = 0;
  if (tile.columns == tile.columns_between_rows) {
    largest = narrow(values, tile.rows * tile.columns, narrowed);
  } else {
    for (std::uint64_t row = 0; row < tile.rows; ++row)
      largest = std::max(largest, narrow(values + row * tile.columns_between_rows, tile.columns,
                                         narrowed + row * tile.columns));
  }
  if (largest > column.largest) fail_for_value<From>(column, tile);
  const std::size_t row_bytes = layout_.row_bytes();
  std::byte* out = target.out + (tile.first_row - target.first) * row_bytes + column.member.offset +
                   tile.first_column * sizeof(To);
  scatter_rows(narrow_.data(), tile.rows, tile.columns * sizeof(To), out, row_bytes);
}

// Names the first value of the tile that is out of range.
template <class From>
void BertShardFile::fail_for_value(const Column& column, const Tile& tile) const {
  const auto* values = reinterpret_cast<const From*>(tile.values);
  for (std::uint64_t row = 0; row < tile.rows; ++row, values += tile.columns_between_rows) {
    const From* end = values + tile.columns;
    const From* wrong = std::find_if(
        values, end, [&](From value) { return static_cast<std::uint64_t>(value) > column.largest; });
    if (wrong == end) continue;
    fail_bert_value(fmt::format("{}: row {}", path_, tile.first_row + row), layout_, limits_, column.member,
                    tile.first_column + static_cast<std::size_t>(wrong - values), std::to_string(*wrong));
  }
}

template <class From>
void BertShardFile::store_from(const Column& column, const Tile& tile, const Target& target) {
  if (column.member.dtype == DType::u8) return store_as<From, std::uint8_t>(column, tile, target);
  if (column.member.dtype == DType::u16) return store_as<From, std::uint16_t>(column, tile, target);
  store_as<From, std::uint32_t>(column, tile, target);
}

void BertShardFile::store(const Column& column, const Tile& tile, const Target& target) {
  switch (*column.info.dtype) {
    case DType::u8:
      return store_from<std::uint8_t>(column, tile, target);
    case DType::i8:
      return store_from<std::int8_t>(column, tile, target);
    case DType::u16:
      return store_from<std::uint16_t>(column, tile, target);
    case DType::i16:
      return store_from<std::int16_t>(column, tile, target);
    case DType::u32:
      return store_from<std::uint32_t>(column, tile, target);
    case DType::i32:
      return store_from<std::int32_t>(column, tile, target);
    case DType::u64:
      return store_from<std::uint64_t>(column, tile, target);
    case DType::i64:
      return store_from<std::int64_t>(column, tile, target);
    default:
      MOTLEY_CHECK(column.info.is_integer());
=======
struct BertShard::Impl {
  Hdf5Handle file;
  std::size_t sequence = 0, predictions = 0;
  std::uint64_t rows = 0;
  std::size_t buffered = 0;  // rows below that are not in the file yet
  std::vector<std::int32_t> ids, positions, labels;
  std::vector<std::int8_t> mask, segments, next;
  Column ids_column, mask_column, segments_column, positions_column, labels_column, next_column;

  void clear();
  void flush();
};

void BertShard::Impl::clear() {
  buffered = 0;
  ids.assign(chunk_rows * sequence, 0);
  mask.assign(chunk_rows * sequence, 0);
  segments.assign(chunk_rows * sequence, 0);
  positions.assign(chunk_rows * predictions, 0);
  labels.assign(chunk_rows * predictions, 0);
  next.assign(chunk_rows, 0);
}

void BertShard::Impl::flush() {
  if (buffered == 0) return;
  const Hdf5Lock lock;
  ids_column.append(ids.data(), buffered);
  mask_column.append(mask.data(), buffered);
  segments_column.append(segments.data(), buffered);
  if (predictions > 0) {
    positions_column.append(positions.data(), buffered);
    labels_column.append(labels.data(), buffered);
  }
  next_column.append(next.data(), buffered);
  clear();
}

BertShard::BertShard(const ShardLayout& layout) : impl_(std::make_unique<Impl>()) {
  MOTLEY_CHECK(layout.sequence > 0 && layout.predictions >= 0 && layout.gzip_level <= 9);
  Impl& shard = *impl_;
  shard.sequence = static_cast<std::size_t>(layout.sequence);
  shard.predictions = static_cast<std::size_t>(layout.predictions);
  shard.clear();
  const Hdf5Lock lock;
  shard.file = make_file_in_memory();
  const hid_t file = shard.file.get();
  const hid_t i32 = H5T_NATIVE_INT32, i8 = H5T_NATIVE_INT8;
  shard.ids_column = make_column(file, "input_ids", i32, {shard.sequence}, layout.gzip_level);
  shard.mask_column = make_column(file, "input_mask", i8, {shard.sequence}, layout.gzip_level);
  shard.segments_column = make_column(file, "segment_ids", i8, {shard.sequence}, layout.gzip_level);
  if (shard.predictions > 0) {
    shard.positions_column =
        make_column(file, "masked_lm_positions", i32, {shard.predictions}, layout.gzip_level);
    shard.labels_column = make_column(file, "masked_lm_ids", i32, {shard.predictions}, layout.gzip_level);
  }
  shard.next_column = make_column(file, "next_sentence_labels", i8, {}, layout.gzip_level);
  for (const auto& [name, value] : layout.attributes) add_attribute(file, name, value);
}

BertShard::~BertShard() = default;

std::uint64_t BertShard::rows() const {
  return impl_->rows;
}

void BertShard::add(std::span<const std::int32_t> ids, std::size_t first_segment,
                    std::span<const std::int32_t> positions, std::span<const std::int32_t> labels,
                    bool random_next) {
  Impl& shard = *impl_;
  MOTLEY_CHECK(ids.size() <= shard.sequence && first_segment <= ids.size());
  MOTLEY_CHECK(positions.size() <= shard.predictions && positions.size() == labels.size());
  const auto row = static_cast<std::ptrdiff_t>(shard.buffered * shard.sequence);
  const auto masked = static_cast<std::ptrdiff_t>(shard.buffered * shard.predictions);
  std::copy(ids.begin(), ids.end(), shard.ids.begin() + row);
  std::fill_n(shard.mask.begin() + row, ids.size(), std::int8_t{1});
  std::fill_n(shard.segments.begin() + row + static_cast<std::ptrdiff_t>(first_segment),
              ids.size() - first_segment, std::int8_t{1});
  std::copy(positions.begin(), positions.end(), shard.positions.begin() + masked);
  std::copy(labels.begin(), labels.end(), shard.labels.begin() + masked);
  shard.next[shard.buffered] = random_next ? 1 : 0;
  ++shard.rows;
  if (++shard.buffered == chunk_rows) shard.flush();
}

void BertShard::write(const std::string& path) {
  impl_->flush();
  std::vector<char> image;
  {
    const Hdf5Lock lock;
    const hid_t file = impl_->file.get();
    check(H5Fflush(file, H5F_SCOPE_GLOBAL), "H5Fflush");
    const ssize_t bytes = check(H5Fget_file_image(file, nullptr, 0), "H5Fget_file_image");
    image.resize(static_cast<std::size_t>(bytes));
    check(H5Fget_file_image(file, image.data(), image.size()), "H5Fget_file_image");
  }
  // Only what was made here may be removed again.
  const Descriptor file(path, O_WRONLY | O_CREAT | O_EXCL, ExitCode::input);
  try {
    file.write_all(image.data(), image.size());
    file.sync();
  } catch (...) {
    ::unlink(path.c_str());
    throw;
>>>>>>> s3/text
  }
}

}  // namespace motley::io
