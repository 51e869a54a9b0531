#include "checkpoint/optimizer_file.h"

#include <fcntl.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/layout_file.h"
#include "checkpoint/match.h"
#include "core/descriptor.h"
#include "core/error.h"
#include "io/hdf5.h"

namespace motley::checkpoint {
namespace {

using io::Hdf5Handle;

constexpr ExitCode code = ExitCode::checkpoint;

std::size_t bytes_of(const io::SafetensorsEntry& tensor) {
  return static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
}

Hdf5Handle make_property_list(const std::string& where, hid_t kind) {
  return {MOTLEY_HDF5(where, code, H5Pcreate(kind)), H5Pclose};
}

Hdf5Handle make_space(const std::string& where, const Shape& shape) {
  std::vector<hsize_t> extents;
  extents.reserve(static_cast<std::size_t>(shape.rank()));
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(static_cast<hsize_t>(shape[i]));
  if (extents.empty()) return {MOTLEY_HDF5(where, code, H5Screate(H5S_SCALAR)), H5Sclose};
  return {MOTLEY_HDF5(where, code, H5Screate_simple(shape.rank(), extents.data(), nullptr)), H5Sclose};
}

// Makes the data set and its space in the file, without content; returns where in the file that is to go.
std::uint64_t lay_out(hid_t file, const std::string& path, const io::SafetensorsEntry& tensor) {
  MOTLEY_CHECK(tensor.dtype == DType::f32);
  const std::string where = fmt::format("{}, `{}`", path, tensor.name);
  const Hdf5Handle link = make_property_list(where, H5P_LINK_CREATE);
  MOTLEY_HDF5(where, code, H5Pset_create_intermediate_group(link.get(), 1));
  const Hdf5Handle creation = make_property_list(where, H5P_DATASET_CREATE);
  // The same state gives the same bytes.
  MOTLEY_HDF5(where, code, H5Pset_obj_track_times(creation.get(), false));
  MOTLEY_HDF5(where, code, H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY));
  MOTLEY_HDF5(where, code, H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
  const Hdf5Handle space = make_space(where, tensor.shape);
  const Hdf5Handle set(MOTLEY_HDF5(where, code,
                                   H5Dcreate2(file, tensor.name.c_str(), H5T_IEEE_F32LE, space.get(),
                                              link.get(), creation.get(), H5P_DEFAULT)),
                       H5Dclose);
  if (tensor.shape.elements() == 0) return 0;
  const io::Hdf5Lock lock;
  const haddr_t offset = H5Dget_offset(set.get());
  if (offset == HADDR_UNDEF) io::fail_hdf5(where, "H5Dget_offset", code);
  return static_cast<std::uint64_t>(offset);
}

io::SafetensorsEntry describe(hid_t set, const std::string& name, const std::string& where) {
  io::SafetensorsEntry entry;
  entry.name = name;
  const Hdf5Handle type(MOTLEY_HDF5(where, code, H5Dget_type(set)), H5Tclose);
  const bool is_float = MOTLEY_HDF5(where, code, H5Tget_class(type.get())) == H5T_FLOAT;
  const Hdf5Handle space(MOTLEY_HDF5(where, code, H5Dget_space(set)), H5Sclose);
  const int rank = MOTLEY_HDF5(where, code, H5Sget_simple_extent_ndims(space.get()));
  {
    const io::Hdf5Lock lock;
    if (!is_float || H5Tget_size(type.get()) != sizeof(float) || rank > Shape::max_rank) {
      fail(code, "{} is not a float32 tensor of at most {} dimensions", where, Shape::max_rank);
    }
  }
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  if (rank > 0) MOTLEY_HDF5(where, code, H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr));
  for (const hsize_t extent : extents) entry.shape.append(static_cast<std::int64_t>(extent));
  return entry;
}

void collect(hid_t group, const std::string& prefix, const std::string& path,
             std::vector<io::SafetensorsEntry>& found) {
  for (const std::string& link : io::link_names(group)) {
    const std::string name = prefix + link;
    const std::string where = fmt::format("{}, `{}`", path, name);
    const Hdf5Handle object(MOTLEY_HDF5(where, code, H5Oopen(group, link.c_str(), H5P_DEFAULT)), H5Oclose);
    const H5I_type_t kind = MOTLEY_HDF5(where, code, H5Iget_type(object.get()));
    if (kind == H5I_GROUP) collect(object.get(), name + "/", path, found);
    if (kind == H5I_DATASET) found.push_back(describe(object.get(), name, where));
  }
}

Hdf5Handle open_file(const std::string& path) {
  try {
    return io::open_hdf5(path);
  } catch (const Error& error) {
    throw Error(code, error.what());
  }
}

}  // namespace

void write_optimizer_file(const std::filesystem::path& path, std::span<const io::SafetensorsEntry> tensors) {
  static_assert(std::endian::native == std::endian::little, "tensors are written as they lie in memory");
  const std::string where = path.string();
  LayoutFile layout(where);
  std::vector<std::uint64_t> offsets;
  for (const io::SafetensorsEntry& tensor : tensors) offsets.push_back(lay_out(layout.id(), where, tensor));
  layout.close();

  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC, code);
  file.resize(layout.size());
  for (const auto& [number, page] : layout.pages()) {
    const std::uint64_t at = number * LayoutFile::page_bytes;
    const auto bytes = std::min<std::uint64_t>(page.size(), layout.size() - std::min(at, layout.size()));
    file.write_at(at, page.data(), bytes);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    file.write_at(offsets[i], tensors[i].data, bytes_of(tensors[i]));
  }
  file.sync();
}

void read_optimizer_file(const std::filesystem::path& path, std::span<const io::SafetensorsEntry> wanted) {
  const std::string where = path.string();
  const Hdf5Handle file = open_file(where);
  std::vector<io::SafetensorsEntry> found;
  collect(file.get(), "", where, found);
  require_same_tensors(where, found, wanted);
  for (const io::SafetensorsEntry& tensor : wanted) {
    if (tensor.shape.elements() == 0) continue;
    const std::string set_name = fmt::format("{}, `{}`", where, tensor.name);
    const Hdf5Handle set(MOTLEY_HDF5(set_name, code, H5Dopen2(file.get(), tensor.name.c_str(), H5P_DEFAULT)),
                         H5Dclose);
    MOTLEY_HDF5(
        set_name, code,
        H5Dread(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, const_cast<void*>(tensor.data)));
  }
}

}  // namespace motley::checkpoint
