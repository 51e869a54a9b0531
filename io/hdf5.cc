#include "io/hdf5.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "core/files.h"

namespace motley::io {
namespace {

std::recursive_mutex& process_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

// What the call, "H5Fopen" or with its arguments "H5Fopen(path.c_str(), ...)", does for the user.
std::string in_words(std::string_view call) {
  constexpr std::pair<std::string_view, const char*> words[] = {{"H5Fis_hdf5", "open it"},
                                                                {"H5Fopen", "open it"},
                                                                {"H5Oopen", "open it"},
                                                                {"H5Dopen2", "open it"},
                                                                {"H5Dread", "read it"},
                                                                {"H5Fcreate", "create it"},
                                                                {"H5Dcreate2", "lay it out"},
                                                                {"H5Dwrite", "write it"},
                                                                {"H5Dget_", "tell how it is stored"},
                                                                {"H5Oget_", "tell how it is stored"},
                                                                {"H5Sget_", "tell its shape"},
                                                                {"H5T", "tell its type"}};
  for (const auto& [prefix, text] : words) {
    if (call.starts_with(prefix)) return text;
  }
  if (call.find(".close()") != std::string_view::npos) return "close it";
  return fmt::format("do {} on it", call.substr(0, call.find('(')));
}

// What a file that is not HDF5 seems to be, from its first bytes.
std::string guess_format(std::string_view head) {
  using namespace std::string_view_literals;
  if (head.empty()) return "it is empty";
  if (head.starts_with("\x1f\x8b"sv)) return "it is gzip-compressed";
  if (head.starts_with("\0\0\x08"sv)) return "it looks like an IDX file, which `motley data idx` converts";
  if (head.starts_with("PK\x03\x04"sv)) return "it looks like a zip archive";
  if (head.starts_with("\x93NUMPY"sv)) return "it looks like a NumPy array";
  return "it does not begin with the HDF5 signature";
}

// Fails with the system's own words where HDF5 would only say that it could not open the file.
std::string read_head(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    fail(ExitCode::input, "cannot open {}: {}", path, system_message(errno));
  }
  if (S_ISDIR(status.st_mode)) fail(ExitCode::input, "{} is a directory; an HDF5 file was expected", path);
  if (!S_ISREG(status.st_mode))
    fail(ExitCode::input, "{} is not a regular file; an HDF5 file was expected", path);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ExitCode::input, "cannot open {}: {}", path, system_message(errno));
  std::array<char, 16> head{};
  const ssize_t got = ::pread(file, head.data(), head.size(), 0);
  const int error = errno;
  ::close(file);
  if (got < 0) fail(ExitCode::input, "cannot read {}: {}", path, system_message(error));
  return {head.data(), static_cast<std::size_t>(got)};
}

}  // namespace

Hdf5Lock::Hdf5Lock() : lock_(process_mutex()) {
  // Errors are reported by fail_hdf5; the library must not print them as well.
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Hdf5Handle& Hdf5Handle::operator=(Hdf5Handle&& other) noexcept {
  if (this != &other) {
    reset();
    id_ = std::exchange(other.id_, -1);
    close_ = other.close_;
  }
  return *this;
}

void Hdf5Handle::reset() noexcept {
  close();
}

herr_t Hdf5Handle::close() {
  if (id_ < 0) return 0;
  const Hdf5Lock lock;
  return close_(std::exchange(id_, -1));
}

void fail_hdf5(const std::string& where, const char* call, ExitCode code) {
  std::string reason = "no reason given";
  const auto innermost = [](unsigned depth, const H5E_error2_t* entry, void* out) -> herr_t {
    if (depth == 0 && entry->desc != nullptr) *static_cast<std::string*>(out) = entry->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, &reason);
  if (code == ExitCode::internal) fail(code, "{}: {} failed: {}", where, call, reason);
  fail(code, "{}: HDF5 cannot {}: {}", where, in_words(call), reason);
}

Hdf5Handle open_hdf5(const std::string& path) {
  const std::string head = read_head(path);
  const Hdf5Lock lock;
  if (MOTLEY_HDF5(path, ExitCode::input, H5Fis_hdf5(path.c_str())) == 0) {
    fail(ExitCode::input, "{} is not an HDF5 file: {}", path, guess_format(head));
  }
  const Hdf5Handle access(MOTLEY_HDF5(path, ExitCode::input, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  MOTLEY_HDF5(path, ExitCode::input, H5Pset_file_locking(access.get(), false, true));
#endif
  return {MOTLEY_HDF5(path, ExitCode::input, H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get())), H5Fclose};
}

std::vector<std::string> link_names(hid_t group) {
  const Hdf5Lock lock;
  H5G_info_t info{};
  std::vector<std::string> names;
  if (H5Gget_info(group, &info) < 0) return names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const ssize_t length =
        H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT);
    if (length < 0) continue;
    std::string name(static_cast<std::size_t>(length), '\0');
    H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size() + 1, H5P_DEFAULT);
    names.push_back(std::move(name));
  }
  return names;
}

std::string list_contents(hid_t group) {
  const Hdf5Lock lock;
  const std::vector<std::string> names = link_names(group);
  constexpr std::size_t shown_at_most = 20;
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    if (i == shown_at_most) return text + fmt::format("{} more", names.size() - i);
    const Hdf5Handle object(H5Oopen(group, names[i].c_str(), H5P_DEFAULT), H5Oclose);
    const H5I_type_t kind = object.valid() ? H5Iget_type(object.get()) : H5I_BADID;
    if (kind == H5I_GROUP) text += "the group ";
    if (kind == H5I_BADID) text += "the dangling link ";
    text += "`" + names[i] + "`";
  }
  return text.empty() ? "nothing" : text;
}

hid_t memory_type(DType dtype) {
  const Hdf5Lock lock;
  switch (dtype) {
    case DType::u8:
      return H5T_NATIVE_UINT8;
    case DType::i8:
      return H5T_NATIVE_INT8;
    case DType::u16:
      return H5T_NATIVE_UINT16;
    case DType::i16:
      return H5T_NATIVE_INT16;
    case DType::u32:
      return H5T_NATIVE_UINT32;
    case DType::i32:
      return H5T_NATIVE_INT32;
    case DType::u64:
      return H5T_NATIVE_UINT64;
    case DType::i64:
      return H5T_NATIVE_INT64;
    case DType::f32:
      return H5T_NATIVE_FLOAT;
    case DType::f64:
      return H5T_NATIVE_DOUBLE;
    case DType::f16:
    case DType::bf16:
      break;
  }
  fail(ExitCode::internal, "HDF5 has no memory type for {}", name_of(dtype));
}

}  // namespace motley::io
