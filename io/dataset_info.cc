#include "io/dataset_info.h"

#include <fmt/ranges.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "io/hdf5.h"

namespace motley::io {
namespace {

struct ElementType {
  std::optional<DType> dtype;
  std::string text;
  // How the bytes in the file differ from those of the dtype on a little-endian machine; empty when they do not.
  std::string difference;
};

std::optional<DType> integer_dtype(std::size_t bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? DType::i8 : DType::u8;
    case 2:
      return is_signed ? DType::i16 : DType::u16;
    case 4:
      return is_signed ? DType::i32 : DType::u32;
    case 8:
      return is_signed ? DType::i64 : DType::u64;
    default:
      return std::nullopt;
  }
}

ElementType describe_integer(hid_t type) {
  const std::size_t bytes = H5Tget_size(type);
  ElementType element;
  element.dtype = integer_dtype(bytes, H5Tget_sign(type) == H5T_SGN_2);
  if (!element.dtype) return {std::nullopt, fmt::format("{}-byte integer", bytes), {}};
  const bool whole = H5Tget_precision(type) == 8 * bytes && H5Tget_offset(type) == 0;
  const bool big_endian = bytes > 1 && H5Tget_order(type) == H5T_ORDER_BE;
  element.text = name_of(*element.dtype);
  if (!whole)
    element.difference = fmt::format("of integers that use {} of {} bits", H5Tget_precision(type), 8 * bytes);
  if (big_endian) element.difference = "big-endian";
  if (big_endian) element.text += " (big-endian)";
  if (!whole) element.text += fmt::format(" ({} bits used)", H5Tget_precision(type));
  return element;
}

ElementType describe_float(hid_t type) {
  if (H5Tequal(type, H5T_IEEE_F32LE) > 0) return {DType::f32, "float32", {}};
  if (H5Tequal(type, H5T_IEEE_F64LE) > 0) return {DType::f64, "float64", {}};
  if (H5Tequal(type, H5T_IEEE_F32BE) > 0) return {DType::f32, "float32 (big-endian)", "big-endian"};
  if (H5Tequal(type, H5T_IEEE_F64BE) > 0) return {DType::f64, "float64 (big-endian)", "big-endian"};
  return {std::nullopt, fmt::format("float of {} bits", 8 * H5Tget_size(type)), {}};
}

ElementType describe_type(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return describe_integer(type);
    case H5T_FLOAT:
      return describe_float(type);
    case H5T_STRING:
      return {std::nullopt, "string", {}};
    case H5T_COMPOUND:
      return {std::nullopt, "compound", {}};
    case H5T_ENUM:
      return {std::nullopt, "enumeration or boolean", {}};
    case H5T_ARRAY:
      return {std::nullopt, "array", {}};
    case H5T_VLEN:
      return {std::nullopt, "variable-length", {}};
    case H5T_BITFIELD:
      return {std::nullopt, "bit field", {}};
    case H5T_OPAQUE:
      return {std::nullopt, "opaque", {}};
    case H5T_REFERENCE:
      return {std::nullopt, "reference", {}};
    default:
      return {std::nullopt, "unknown type", {}};
  }
}

std::string bracketed(const std::vector<std::uint64_t>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

struct Filters {
  std::vector<std::string> names;  // "gzip 4", "shuffle"
  std::vector<int> ids;
  bool compress = false;
  std::string missing;  // the first that cannot be undone here
};

Filters describe_filters(hid_t creation) {
  Filters filters;
  const int count = H5Pget_nfilters(creation);
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, config = 0;
    std::array<unsigned, 8> values{};
    std::size_t value_count = values.size();
    std::array<char, 64> name{};
    const H5Z_filter_t id = H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &value_count,
                                           values.data(), name.size() - 1, name.data(), &config);
    if (id < 0) continue;
    filters.ids.push_back(id);
    std::string filter = name[0] != '\0' ? name.data() : fmt::format("filter {}", id);
    if (id == H5Z_FILTER_DEFLATE) filter = fmt::format("gzip {}", value_count > 0 ? values[0] : 0);
    if (id == H5Z_FILTER_SHUFFLE) filter = "shuffle";
    if (id == H5Z_FILTER_FLETCHER32) filter = "checksum";
    if (H5Zfilter_avail(id) <= 0 && filters.missing.empty()) filters.missing = filter;
    if (id != H5Z_FILTER_SHUFFLE && id != H5Z_FILTER_FLETCHER32) filters.compress = true;
    filters.names.push_back(std::move(filter));
  }
  return filters;
}

// Chunks and contiguous data may get their place in the file when they are first written.
bool is_written(hid_t creation, const DatasetInfo& info) {
  const H5D_layout_t layout = H5Pget_layout(creation);
  if (layout == H5D_CONTIGUOUS && H5Pget_external_count(creation) > 0) return true;
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) return true;
  return info.stored_bytes > 0;
}

// HDF5's number for the open file in which `object` lies, the same under whatever name it was reached.
unsigned long file_number(hid_t object, const std::string& where) {
#if H5_VERSION_GE(1, 12, 0)
  H5O_info2_t info{};
  MOTLEY_HDF5(where, ExitCode::input, H5Oget_info3(object, &info, H5O_INFO_BASIC));
#else
  H5O_info_t info{};
  MOTLEY_HDF5(where, ExitCode::input, H5Oget_info2(object, &info, H5O_INFO_BASIC));
#endif
  return info.fileno;
}

// The name of the file in which `object` lies.
std::string file_name(hid_t object) {
  const ssize_t length = H5Fget_name(object, nullptr, 0);
  if (length <= 0) return "unknown";
  std::string name(static_cast<std::size_t>(length), '\0');
  H5Fget_name(object, name.data(), name.size() + 1);
  return name;
}

// Whether the bytes [offset, offset + bytes) are there: those of one part of a split or family file are not.
bool within_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes) {
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  return !error && offset <= size && bytes <= size - offset;
}

void describe_layout(hid_t creation, DatasetInfo& info) {
  switch (H5Pget_layout(creation)) {
    case H5D_COMPACT:
      info.layout = info.why_unpacked = "compact (inside the object header)";
      return;
    case H5D_VIRTUAL:
      info.layout = info.why_unpacked = "virtual (assembled from other data sets)";
      return;
    case H5D_CHUNKED: {
      std::vector<hsize_t> chunk(info.extents.size());
      const int rank = H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
      if (rank == static_cast<int>(chunk.size())) info.chunk.assign(chunk.begin(), chunk.end());
      info.layout = "chunks of " + bracketed(info.chunk);
      const Filters filters = describe_filters(creation);
      info.missing_filter = filters.missing;
      info.filters = filters.ids;
      info.why_unpacked = filters.compress ? "chunked and compressed" : "chunked";
      if (!filters.names.empty()) {
        const std::string names = fmt::format("{}", fmt::join(filters.names, ", "));
        info.layout += ", " + names;
        info.why_unpacked += " (" + names + ")";
      }
      return;
    }
    case H5D_CONTIGUOUS: {
      if (H5Pget_external_count(creation) > 0) {
        info.layout = "contiguous, in external files";
        info.why_unpacked = "stored in external files";
        return;
      }
      info.layout = "contiguous";
      return;
    }
    default:
      info.layout = "unknown layout";
      info.why_unpacked = "of a layout that motley does not know";
  }
}

// Sets `packed` with `file_offset`, or `why_unpacked`, of a data set of which the rest is known.
void find_in_file(hid_t dataset, hid_t file, const std::string& path, const std::string& difference,
                  DatasetInfo& info) {
  const std::string where = fmt::format("{}, data set `{}`", path, info.name);
  // Offsets count from the beginning of the file that holds the data set, which a link may have left.
  if (file_number(dataset, where) != file_number(file, where)) {
    info.why_unpacked = fmt::format("in another file ({})", file_name(dataset));
    info.layout += ", " + info.why_unpacked;
  }
  const bool contiguous = info.why_unpacked.empty() && info.written;
  const haddr_t offset = contiguous ? H5Dget_offset(dataset) : HADDR_UNDEF;
  info.past_end = contiguous && (offset == HADDR_UNDEF || !within_file(path, offset, info.stored_bytes));
  if (info.why_unpacked.empty()) info.why_unpacked = difference;
  if (!info.written) info.why_unpacked = "without data (it was created but never written)";
  if (!info.why_unpacked.empty()) return;

  if (info.past_end) {
    info.why_unpacked = "past the end of the file";
    info.layout += ", " + info.why_unpacked;
    return;
  }
  info.packed = true;
  info.file_offset = offset;
}

}  // namespace

std::string DatasetInfo::shape() const {
  return bracketed(extents);
}

Field DatasetInfo::as_field() const {
  MOTLEY_CHECK(dtype && !extents.empty());
  Field field{name, *dtype, {}, packed, file_offset, why_unpacked};
  for (std::size_t i = 1; i < extents.size(); ++i) field.row.append(static_cast<std::int64_t>(extents[i]));
  return field;
}

DatasetInfo describe_dataset(hid_t dataset, hid_t file, const std::string& path, const std::string& name) {
  const Hdf5Lock lock;
  const std::string where = fmt::format("{}, data set `{}`", path, name);
  DatasetInfo info;
  info.name = name;

  const Hdf5Handle type(MOTLEY_HDF5(where, ExitCode::input, H5Dget_type(dataset)), H5Tclose);
  const ElementType element = describe_type(type.get());
  info.dtype = element.dtype;
  info.type = element.text;
  info.native = element.dtype && element.difference.empty();

  const Hdf5Handle space(MOTLEY_HDF5(where, ExitCode::input, H5Dget_space(dataset)), H5Sclose);
  const int rank = MOTLEY_HDF5(where, ExitCode::input, H5Sget_simple_extent_ndims(space.get()));
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  MOTLEY_HDF5(where, ExitCode::input, H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr));
  info.extents.assign(extents.begin(), extents.end());

  const Hdf5Handle creation(MOTLEY_HDF5(where, ExitCode::input, H5Dget_create_plist(dataset)), H5Pclose);
  describe_layout(creation.get(), info);
  info.stored_bytes = H5Dget_storage_size(dataset);
  info.written = is_written(creation.get(), info);
  if (!info.written) info.layout += ", never written";
  find_in_file(dataset, file, path, element.difference, info);
  return info;
}

DatasetInfo open_and_describe(hid_t file, const std::string& path, const std::string& name) {
  const Hdf5Lock lock;
  if (H5Lexists(file, name.c_str(), H5P_DEFAULT) <= 0) {
    fail(ExitCode::input, "{} has no data set `{}`; it has {}", path, name, list_contents(file));
  }
  const std::string where = fmt::format("{}, data set `{}`", path, name);
  const Hdf5Handle object(MOTLEY_HDF5(where, ExitCode::input, H5Oopen(file, name.c_str(), H5P_DEFAULT)),
                          H5Oclose);
  if (H5Iget_type(object.get()) != H5I_DATASET) {
    fail(ExitCode::input, "{}: `{}` is a group; a data set was expected", path, name);
  }
  DatasetInfo info = describe_dataset(object.get(), file, path, name);
  if (!info.missing_filter.empty()) {
    fail(ExitCode::input,
         "{}: data set `{}` is compressed with {}, which the HDF5 library of this machine cannot undo; "
         "expected no compression or gzip",
         path, name, info.missing_filter);
  }
  return info;
}

}  // namespace motley::io
