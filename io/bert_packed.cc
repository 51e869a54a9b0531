#include "io/bert_packed.h"

#include <fcntl.h>
#include <sys/types.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "core/descriptor.h"
#include "core/error.h"
#include "io/bert_pack.h"
#include "io/hdf5.h"
#include "io/hdf5_text.h"

namespace motley::io {
namespace {

constexpr const char* dataset_name = "samples";

// A member of a compound type as found in a file.
struct Found {
  std::string name;
  std::size_t offset = 0;
  std::optional<DType> dtype;  // of an unsigned little-endian integer
  std::uint64_t length = 1;
  bool array = false;
};

std::optional<DType> unsigned_dtype(hid_t type) {
  if (H5Tequal(type, H5T_STD_U8LE) > 0) return DType::u8;
  if (H5Tequal(type, H5T_STD_U16LE) > 0) return DType::u16;
  if (H5Tequal(type, H5T_STD_U32LE) > 0) return DType::u32;
  return std::nullopt;
}

hid_t file_type(DType dtype) {
  if (dtype == DType::u8) return H5T_STD_U8LE;
  if (dtype == DType::u16) return H5T_STD_U16LE;
  MOTLEY_CHECK(dtype == DType::u32);
  return H5T_STD_U32LE;
}

Found find_member(hid_t compound, unsigned index, const std::string& where) {
  Found found;
  char* const name = H5Tget_member_name(compound, index);
  if (name != nullptr) found.name = name;
  H5free_memory(name);
  found.offset = H5Tget_member_offset(compound, index);
  const Hdf5Handle type(MOTLEY_HDF5(where, ExitCode::input, H5Tget_member_type(compound, index)), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_ARRAY) {
    found.dtype = unsigned_dtype(type.get());
    return found;
  }
  found.array = true;
  const Hdf5Handle element(MOTLEY_HDF5(where, ExitCode::input, H5Tget_super(type.get())), H5Tclose);
  hsize_t length = 0;
  if (H5Tget_array_ndims(type.get()) != 1 || H5Tget_array_dims2(type.get(), &length) < 0) return found;
  found.length = length;
  found.dtype = unsigned_dtype(element.get());
  return found;
}

std::string text_of(const std::string& name, std::optional<DType> dtype, std::uint64_t length, bool array,
                    std::size_t offset) {
  return fmt::format("`{}` ({}{} at byte {})", name, dtype ? name_of(*dtype) : "another type",
                     array ? fmt::format(" [{}]", length) : "", offset);
}

std::string text_of(const Found& found) {
  return text_of(found.name, found.dtype, found.length, found.array, found.offset);
}

// The layout that the sizes of the members point to, whether or not the rest is right.
BertLayout guess_layout(const std::vector<Found>& members) {
  BertLayout layout;
  for (const Found& member : members) {
    const auto length = static_cast<std::int64_t>(std::min<std::uint64_t>(member.length, longest_sequence));
    if (member.name == "input_ids") {
      layout.seq_length = length;
      if (member.dtype == DType::u32) layout.id = DType::u32;
    }
    if (member.name == "masked_lm_positions") layout.predictions = length;
  }
  return layout;
}

BertLayout read_layout(hid_t compound, const std::string& where) {
  const int count = H5Tget_nmembers(compound);
  std::vector<Found> found;
  for (int i = 0; i < count; ++i) found.push_back(find_member(compound, static_cast<unsigned>(i), where));
  const BertLayout layout = guess_layout(found);
  const std::vector<BertMember> expected = members_of(layout);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const BertMember& wanted = expected[i];
    const std::string wanted_text =
        text_of(std::string(wanted.name), wanted.dtype, wanted.length, wanted.array, wanted.offset);
    if (i >= found.size()) fail(ExitCode::input, "{} has no member {}", where, wanted_text);
    const Found& member = found[i];
    if (member.name != wanted.name || member.dtype != wanted.dtype || member.length != wanted.length ||
        member.array != wanted.array || member.offset != wanted.offset) {
      fail(ExitCode::input, "{} has the member {}; expected {}", where, text_of(member), wanted_text);
    }
  }
  if (found.size() > expected.size() || H5Tget_size(compound) != layout.row_bytes()) {
    fail(ExitCode::input, "{} has records of {} members and {} bytes; expected {} and {}", where,
         found.size(), H5Tget_size(compound), expected.size(), layout.row_bytes());
  }
  return layout;
}

Hdf5Handle make_type(const BertLayout& layout, const std::string& where) {
  Hdf5Handle compound(MOTLEY_HDF5(where, ExitCode::input, H5Tcreate(H5T_COMPOUND, layout.row_bytes())),
                      H5Tclose);
  for (const BertMember& member : members_of(layout)) {
    const hsize_t length = member.length;
    const Hdf5Handle array(
        MOTLEY_HDF5(where, ExitCode::input, H5Tarray_create2(file_type(member.dtype), 1, &length)), H5Tclose);
    const hid_t type = member.array ? array.get() : file_type(member.dtype);
    MOTLEY_HDF5(where, ExitCode::input,
                H5Tinsert(compound.get(), std::string(member.name).c_str(), member.offset, type));
  }
  return compound;
}

}  // namespace

bool has_packed_bert(hid_t file) {
  const Hdf5Lock lock;
  return H5Lexists(file, dataset_name, H5P_DEFAULT) > 0;
}

PackedBert describe_packed_bert(hid_t file, const std::string& path) {
  const Hdf5Lock lock;
  const std::string where = fmt::format("{}: data set `{}`", path, dataset_name);
  PackedBert packed;
  packed.info = open_and_describe(file, path, dataset_name);
  const Hdf5Handle dataset(MOTLEY_HDF5(where, ExitCode::input, H5Dopen2(file, dataset_name, H5P_DEFAULT)),
                           H5Dclose);
  const Hdf5Handle type(MOTLEY_HDF5(where, ExitCode::input, H5Dget_type(dataset.get())), H5Tclose);
  if (H5Tget_class(type.get()) != H5T_COMPOUND)
    fail(ExitCode::input, "{} holds {}; expected records as `motley data pack` writes them", where,
         packed.info.type);
  packed.layout = read_layout(type.get(), where);
  if (packed.layout.seq_length == 0)
    fail(ExitCode::input, "{} has samples without tokens; expected at least one", where);
  if (packed.info.extents.size() != 1) {
    fail(ExitCode::input, "{} has the shape {}; expected one dimension [samples]", where,
         packed.info.shape());
  }
  packed.rows = packed.info.extents[0];
  if (packed.rows == 0) fail(ExitCode::input, "{} is empty; expected at least one sample", where);
  if (!packed.info.packed) {
    fail(ExitCode::input, "{} is {}; expected contiguous records, as `motley data pack` writes them", where,
         packed.info.why_unpacked);
  }
  return packed;
}

namespace {

// HDF5 1.10 crashes at the end of a process in which it could not extend a file. So this finds out whether
// that is possible, by doing it: HDF5 then cuts the file off again, and its own attempt succeeds.
void try_length(const std::string& path, const BertLayout& layout, std::uint64_t rows) {
  constexpr std::uint64_t header_bytes = 1 << 16;  // more than what HDF5 puts before the samples
  constexpr auto longest = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  if (rows > (longest - header_bytes) / layout.row_bytes()) {
    fail(ExitCode::input, "cannot write {}: {} samples of {} bytes are more than a file can hold", path, rows,
         layout.row_bytes());
  }
  Descriptor(path, O_WRONLY | O_CREAT, ExitCode::input).resize(header_bytes + rows * layout.row_bytes());
}

}  // namespace

std::uint64_t create_packed_bert(const std::string& path, const BertLayout& layout, std::uint64_t rows,
                                 const std::string& vocab_xxh3) {
  try_length(path, layout, rows);
  const Hdf5Lock lock;
  const std::string where = "cannot write " + path;
  const Hdf5Handle access(MOTLEY_HDF5(where, ExitCode::input, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  MOTLEY_HDF5(where, ExitCode::input, H5Pset_alignment(access.get(), 16384, 4096));
  Hdf5Handle file(
      MOTLEY_HDF5(where, ExitCode::input, H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
      H5Fclose);
  if (!vocab_xxh3.empty())
    write_text_attribute(file.get(), where, vocabulary_attribute, vocab_xxh3, ExitCode::input);
  const Hdf5Handle type = make_type(layout, where);
  const hsize_t extent = rows;
  const Hdf5Handle space(MOTLEY_HDF5(where, ExitCode::input, H5Screate_simple(1, &extent, nullptr)),
                         H5Sclose);
  const Hdf5Handle creation(MOTLEY_HDF5(where, ExitCode::input, H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  // No time stamps: the same input gives the same bytes.
  MOTLEY_HDF5(where, ExitCode::input, H5Pset_obj_track_times(creation.get(), false));
  MOTLEY_HDF5(where, ExitCode::input, H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER));
  MOTLEY_HDF5(where, ExitCode::input, H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY));
  Hdf5Handle dataset(MOTLEY_HDF5(where, ExitCode::input,
                                 H5Dcreate2(file.get(), dataset_name, type.get(), space.get(), H5P_DEFAULT,
                                            creation.get(), H5P_DEFAULT)),
                     H5Dclose);
  const haddr_t offset = H5Dget_offset(dataset.get());
  MOTLEY_CHECK(offset != HADDR_UNDEF);
  MOTLEY_HDF5(where, ExitCode::input, dataset.close());
  MOTLEY_HDF5(where, ExitCode::input, file.close());
  return offset;
}

}  // namespace motley::io
