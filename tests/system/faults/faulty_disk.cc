// A disk that fails when it is told to, for LD_PRELOAD: what is written below a temporary checkpoint directory meets the fault
// that the file MOTLEY_FAULT names at that moment. Without the file, or for other paths, calls pass through.
//
//   EIO      writes and fsync fail        ENOSPC, EDQUOT  writes fail
//   EROFS    nothing can be created       short           writes take half of what they are given
//   slow     fsync takes 0.3 s
//
// With "block", reads of train.h5 on rank 1 never return.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

// Without a function that is intercepted here, but for open(), whose path is another.
bool fault_is(const char* kind) {
  static const char* const control = std::getenv("MOTLEY_FAULT");
  if (control == nullptr) return false;
  const int file = ::open(control, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  char text[16] = {};
  const ssize_t got = ::read(file, text, sizeof text - 1);
  ::close(file);
  return got > 0 && std::strcmp(text, kind) == 0;
}

bool is_of_checkpoint(const char* path) {
  return std::strstr(path, "/.tmp-step-") != nullptr;
}

bool path_of(int descriptor, char* path, std::size_t size) {
  char link[64] = "/proc/self/fd/";
  std::size_t end = std::strlen(link);
  char digits[16];
  int count = 0;
  for (int rest = descriptor; rest > 0 || count == 0; rest /= 10)
    digits[count++] = static_cast<char>('0' + rest % 10);
  while (count > 0) link[end++] = digits[--count];
  return ::readlink(link, path, size - 1) > 0;
}

bool is_of_checkpoint(int descriptor) {
  char path[4096] = {};
  return path_of(descriptor, path, sizeof path) && is_of_checkpoint(path);
}

void block_if_told(int descriptor) {
  static const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr || std::strcmp(rank, "1") != 0) return;
  char path[4096] = {};
  if (!path_of(descriptor, path, sizeof path) || std::strstr(path, "/train.h5") == nullptr) return;
  while (fault_is("block")) ::usleep(100000);
}

// errno for a write; 0: none.
int write_fault() {
  if (fault_is("EIO")) return EIO;
  if (fault_is("ENOSPC")) return ENOSPC;
  if (fault_is("EDQUOT")) return EDQUOT;
  return 0;
}

}  // namespace

extern "C" {

ssize_t pread(int descriptor, void* data, size_t bytes, off_t offset) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  block_if_told(descriptor);
  return real(descriptor, data, bytes, offset);
}

ssize_t preadv(int descriptor, const iovec* parts, int count, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int, off_t)>("preadv");
  block_if_told(descriptor);
  return real(descriptor, parts, count, offset);
}

ssize_t readv(int descriptor, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("readv");
  block_if_told(descriptor);
  return real(descriptor, parts, count);
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  if (is_of_checkpoint(descriptor)) {
    errno = write_fault();
    if (errno != 0) return -1;
    if (bytes > 1 && fault_is("short")) bytes /= 2;
  }
  return real(descriptor, data, bytes);
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  if (is_of_checkpoint(descriptor)) {
    errno = write_fault();
    if (errno != 0) return -1;
    if (bytes > 1 && fault_is("short")) bytes /= 2;
  }
  return real(descriptor, data, bytes, offset);
}

int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  if (is_of_checkpoint(descriptor)) {
    if (fault_is("EIO")) {
      errno = EIO;
      return -1;
    }
    if (fault_is("slow")) ::usleep(300000);
  }
  return real(descriptor);
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  if (is_of_checkpoint(path) && fault_is("EROFS")) {
    errno = EROFS;
    return -1;
  }
  return real(path, mode);
}

}  // extern "C"
