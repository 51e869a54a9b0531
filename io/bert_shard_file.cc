#include "io/bert_shard_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "io/bert_check.h"
#include "io/bert_shard_header.h"

namespace motley::io {

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
}

}  // namespace

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
  for (std::uint64_t row = 0; row < count; ++row) {
    const std::string problem = bert_mask_problem(layout_, out + row * layout_.row_bytes());
    if (!problem.empty()) fail(ExitCode::input, "{}: row {}: {}", path_, first + row, problem);
  }
}

// Fetches a chunk as it lies into raw_. False when it has no place in the file; `skipped` has a bit for each
// filter that the writer left out for this chunk.
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

// Copies `bytes` bytes per row to rows that are `stride` apart. The compiler turns copies of known length
// into one or two instructions; chunks of a few columns have these.
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

// Narrows values and returns the largest: negative ones become huge, so one comparison with it finds both
// kinds of wrong values, and this loop is vectorised.
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
  }
}

}  // namespace motley::io
