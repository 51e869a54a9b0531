#include "checkpoint/optimizer_file.h"

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/match.h"
#include "core/error.h"
#include "core/files.h"
#include "io/hdf5.h"

namespace motley::checkpoint {
namespace {

using io::Hdf5Handle;

constexpr ExitCode code = ExitCode::checkpoint;

Hdf5Handle make_property_list(const std::string& where, hid_t kind) {
  return {MOTLEY_HDF5(where, code, H5Pcreate(kind)), H5Pclose};
}

Hdf5Handle create_file(const std::string& path) {
  const Hdf5Handle access = make_property_list(path, H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  // Parallel file systems often refuse locks; the temporary directory belongs to this process anyway.
  MOTLEY_HDF5(path, code, H5Pset_file_locking(access.get(), false, true));
#endif
  return {MOTLEY_HDF5(path, code, H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
          H5Fclose};
}

Hdf5Handle make_space(const std::string& where, const Shape& shape) {
  std::vector<hsize_t> extents;
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(static_cast<hsize_t>(shape[i]));
  if (extents.empty()) return {MOTLEY_HDF5(where, code, H5Screate(H5S_SCALAR)), H5Sclose};
  return {MOTLEY_HDF5(where, code, H5Screate_simple(shape.rank(), extents.data(), nullptr)), H5Sclose};
}

void write_tensor(hid_t file, const std::string& path, const io::SafetensorsEntry& tensor) {
  MOTLEY_CHECK(tensor.dtype == DType::f32);
  const std::string where = fmt::format("{}, `{}`", path, tensor.name);
  const Hdf5Handle link = make_property_list(where, H5P_LINK_CREATE);
  MOTLEY_HDF5(where, code, H5Pset_create_intermediate_group(link.get(), 1));
  const Hdf5Handle creation = make_property_list(where, H5P_DATASET_CREATE);
  // The same state gives the same bytes.
  MOTLEY_HDF5(where, code, H5Pset_obj_track_times(creation.get(), false));
  const Hdf5Handle space = make_space(where, tensor.shape);
  Hdf5Handle set(MOTLEY_HDF5(where, code,
                             H5Dcreate2(file, tensor.name.c_str(), H5T_IEEE_F32LE, space.get(), link.get(),
                                        creation.get(), H5P_DEFAULT)),
                 H5Dclose);
  if (tensor.shape.elements() > 0) {
    MOTLEY_HDF5(where, code,
                H5Dwrite(set.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.data));
  }
  MOTLEY_HDF5(where, code, set.close());
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

// HDF5 hides what the system said (a full disk, above all) in the middle of a long message with line breaks.
[[noreturn]] void fail_writing(const std::string& path, const std::string& message) {
  constexpr std::string_view before = "error message = '";
  const std::size_t at = message.find(before);
  if (at == std::string::npos) throw Error(code, message);
  const std::string reason = message.substr(at + before.size());
  fail(code, "cannot write {}: {}", path, reason.substr(0, reason.find('\'')));
}

}  // namespace

void write_optimizer_file(const std::filesystem::path& path, std::span<const io::SafetensorsEntry> tensors) {
  const std::string where = path.string();
  try {
    Hdf5Handle file = create_file(where);
    for (const io::SafetensorsEntry& tensor : tensors) write_tensor(file.get(), where, tensor);
    MOTLEY_HDF5(where, code, file.close());
  } catch (const Error& error) {
    if (error.code() != code) throw;
    fail_writing(where, error.what());
  }
  sync_path(path, code);
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
