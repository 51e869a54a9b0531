#include "io/bert_shard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "core/descriptor.h"
#include "core/error.h"
#include "io/hdf5.h"
#include "io/hdf5_text.h"

namespace motley::io {
namespace {

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
  if (const auto* text = std::get_if<std::string>(&value))
    return write_text_attribute(file, where, name.c_str(), *text, ExitCode::internal);
  const auto* whole = std::get_if<std::int64_t>(&value);
  const hid_t type = whole != nullptr ? H5T_STD_I64LE : H5T_IEEE_F64LE;
  const void* data = whole != nullptr ? static_cast<const void*>(whole) : &std::get<double>(value);
  const Hdf5Handle space(check(H5Screate(H5S_SCALAR), "H5Screate"), H5Sclose);
  const Hdf5Handle attribute(
      check(H5Acreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT), "H5Acreate2"),
      H5Aclose);
  check(H5Awrite(attribute.get(), type, data), "H5Awrite");
}

Hdf5Handle make_file_in_memory() {
  constexpr std::size_t growth = 4 << 20;
  const Hdf5Handle access(check(H5Pcreate(H5P_FILE_ACCESS), "H5Pcreate"), H5Pclose);
  check(H5Pset_fapl_core(access.get(), growth, false), "H5Pset_fapl_core");
  return {check(H5Fcreate("shard", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()), "H5Fcreate"), H5Fclose};
}

}  // namespace

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
  }
}

}  // namespace motley::io
