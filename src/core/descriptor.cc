#include "core/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/files.h"

namespace motley {
namespace {

// Calls part(done, rest), which returns what it moved, as read(2) does, until `bytes` are moved or it moves
// none. -1: errno says why.
template <class Part>
ssize_t repeat(std::size_t bytes, const Part& part) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t moved = part(done, bytes - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return -1;
    if (moved == 0) break;
    done += static_cast<std::size_t>(moved);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace

Descriptor::Descriptor(const std::filesystem::path& path, int flags, ExitCode code)
    : path_(path.string()), code_(code) {
  do {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    fail(code, "cannot {} {}: {}", (flags & O_CREAT) != 0 ? "create" : "open", path_, system_message(errno));
  }
}

Descriptor::~Descriptor() {
  ::close(descriptor_);
}

std::size_t Descriptor::read(void* out, std::size_t bytes) const {
  const ssize_t got = repeat(bytes, [&](std::size_t done, std::size_t rest) {
    return ::read(descriptor_, static_cast<char*>(out) + done, rest);
  });
  if (got < 0) fail(code_, "cannot read {}: {}", path_, system_message(errno));
  return static_cast<std::size_t>(got);
}

void Descriptor::write_all(const void* data, std::size_t bytes) const {
  const ssize_t put = repeat(bytes, [&](std::size_t done, std::size_t rest) {
    return ::write(descriptor_, static_cast<const char*>(data) + done, rest);
  });
  if (put < 0) fail(code_, "cannot write {}: {}", path_, system_message(errno));
  if (static_cast<std::size_t>(put) < bytes) fail(code_, "cannot write {}: the system takes no more", path_);
}

void Descriptor::read_at(std::uint64_t offset, void* out, std::size_t bytes) const {
  const ssize_t got = repeat(bytes, [&](std::size_t done, std::size_t rest) {
    return ::pread(descriptor_, static_cast<char*>(out) + done, rest, static_cast<off_t>(offset + done));
  });
  if (got < 0) fail(code_, "cannot read {}: {}", path_, system_message(errno));
  if (static_cast<std::size_t>(got) < bytes) {
    fail(code_, "{} ends at byte {}; {} were expected", path_, offset + static_cast<std::size_t>(got),
         offset + bytes);
  }
}

void Descriptor::write_at(std::uint64_t offset, const void* data, std::size_t bytes) const {
  const ssize_t put = repeat(bytes, [&](std::size_t done, std::size_t rest) {
    return ::pwrite(descriptor_, static_cast<const char*>(data) + done, rest,
                    static_cast<off_t>(offset + done));
  });
  if (put < 0) fail(code_, "cannot write {}: {}", path_, system_message(errno));
  if (static_cast<std::size_t>(put) < bytes) fail(code_, "cannot write {}: the system takes no more", path_);
}

void Descriptor::resize(std::uint64_t bytes) const {
  if (::ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    fail(code_, "cannot write {}: {}", path_, system_message(errno));
  }
}

void Descriptor::sync() const {
  if (::fsync(descriptor_) != 0) {
    fail(code_, "cannot flush {} to disk: {}", path_, system_message(errno));
  }
}

}  // namespace motley
