#include "io/hdf5_rows.h"

#include <algorithm>

#include "core/error.h"
#include "io/dataset_info.h"

namespace motley::io {
namespace {

// Layers of chunks larger than this are read in parts, to bound memory; their chunks are then decompressed
// once per part unless they fit into HDF5's chunk cache.
constexpr std::uint64_t layer_bytes_limit = 128 << 20;
// Without chunks there are no layers: rows this near to each other are read together.
constexpr std::uint64_t run_bytes = 256 << 10;

Hdf5Handle open_with_cache(hid_t file, const std::string& name, const std::string& where,
                           std::uint64_t cache_bytes) {
  const Hdf5Handle access(MOTLEY_HDF5(where, ExitCode::input, H5Pcreate(H5P_DATASET_ACCESS)), H5Pclose);
  constexpr std::size_t slots = 10007;  // HDF5 asks for a prime
  constexpr double evict_fully_read = 1.0;
  MOTLEY_HDF5(where, ExitCode::input, H5Pset_chunk_cache(access.get(), slots, cache_bytes, evict_fully_read));
  return {MOTLEY_HDF5(where, ExitCode::input, H5Dopen2(file, name.c_str(), access.get())), H5Dclose};
}

}  // namespace

Hdf5Rows::Hdf5Rows(const std::string& path, const Field& field, std::uint64_t rows)
    : where_(fmt::format("{}, data set `{}`", path, field.name)),
      row_bytes_(field.row_bytes()),
      dtype_(field.dtype) {
  const Hdf5Lock lock;
  file_ = open_hdf5(path);
  dataset_ = {MOTLEY_HDF5(where_, ExitCode::input, H5Dopen2(file_.get(), field.name.c_str(), H5P_DEFAULT)),
              H5Dclose};
  const DatasetInfo info = describe_dataset(dataset_.get(), file_.get(), path, field.name);
  const bool as_described = info.dtype == field.dtype && !info.extents.empty() && info.extents[0] == rows &&
                            info.as_field().row == field.row;
  if (!as_described) {
    fail(ExitCode::input,
         "{} is {} {} here; {} rows of {} {} were expected: is it the same file on all machines?", where_,
         info.type, info.shape(), rows, name_of(field.dtype), field.row.to_string());
  }
  extents_.assign(info.extents.begin(), info.extents.end());

  const std::uint64_t chunk_rows = info.chunk.empty() ? run_bytes / row_bytes_ : info.chunk[0];
  layer_rows_ =
      std::clamp<std::uint64_t>(chunk_rows, 1, std::max<std::uint64_t>(1, layer_bytes_limit / row_bytes_));
  if (chunk_rows > layer_rows_ && !info.chunk.empty()) {
    dataset_ = open_with_cache(file_.get(), field.name, where_, layer_bytes_limit);
  }
}

void Hdf5Rows::read_range(std::uint64_t first, std::uint64_t count, std::byte* out) const {
  if (count == 0) return;
  const Hdf5Lock lock;
  std::vector<hsize_t> start(extents_.size(), 0), extent = extents_;
  start[0] = first;
  extent[0] = count;
  const Hdf5Handle space(MOTLEY_HDF5(where_, ExitCode::input, H5Dget_space(dataset_.get())), H5Sclose);
  const Hdf5Handle memory(
      MOTLEY_HDF5(where_, ExitCode::input,
                  H5Screate_simple(static_cast<int>(extent.size()), extent.data(), nullptr)),
      H5Sclose);
  MOTLEY_HDF5(
      where_, ExitCode::input,
      H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(), nullptr));
  MOTLEY_HDF5(fmt::format("{}, rows {} to {}", where_, first, first + count - 1), ExitCode::input,
              H5Dread(dataset_.get(), memory_type(dtype_), memory.get(), space.get(), H5P_DEFAULT, out));
}

void Hdf5Rows::read(const SortedRows& wanted, std::byte* out) {
  for (std::size_t begin = 0; begin < wanted.rows.size();) {
    const std::uint64_t layer = wanted.rows[begin] / layer_rows_;
    std::size_t end = begin + 1;
    while (end < wanted.rows.size() && wanted.rows[end] / layer_rows_ == layer) ++end;

    const std::uint64_t first = wanted.rows[begin], count = wanted.rows[end - 1] - first + 1;
    layer_.resize(count * row_bytes_);
    read_range(first, count, layer_.data());
    for (std::size_t i = begin; i < end; ++i) {
      wanted.scatter(i, layer_.data() + (wanted.rows[i] - first) * row_bytes_, row_bytes_, out);
    }
    begin = end;
  }
}

}  // namespace motley::io
