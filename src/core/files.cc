#include "core/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

namespace motley {
namespace {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags, ExitCode code)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
    if (fd_ < 0) fail(code, "cannot open {}: {}", path.string(), system_message(errno));
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

std::string system_message(int error) {
  return std::system_category().message(error);
}

std::string read_file(const std::filesystem::path& path, ExitCode code) {
  const Descriptor file(path, O_RDONLY, code);
  std::string content;
  std::string block(1 << 20, '\0');
  while (true) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      fail(code, "cannot read {}: {}", path.string(), system_message(errno));
    }
    if (got == 0) return content;
    content.append(block, 0, static_cast<std::size_t>(got));
  }
}

void write_file(const std::filesystem::path& path, std::string_view content, ExitCode code) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC, code);
  while (!content.empty()) {
    const ssize_t written = ::write(file.get(), content.data(), content.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(code, "cannot write {}: {}", path.string(), system_message(errno));
    }
    content.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::fsync(file.get()) != 0)
    fail(code, "cannot flush {} to disk: {}", path.string(), system_message(errno));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content, ExitCode code) {
  const std::filesystem::path temporary = path.string() + fmt::format(".tmp-{}", ::getpid());
  write_file(temporary, content, code);
  rename_durably(temporary, path, code);
}

void sync_path(const std::filesystem::path& path, ExitCode code) {
  const Descriptor file(path, O_RDONLY, code);
  if (::fsync(file.get()) != 0)
    fail(code, "cannot flush {} to disk: {}", path.string(), system_message(errno));
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode code) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) fail(code, "cannot rename {} to {}: {}", from.string(), to.string(), error.message());
  const std::filesystem::path parent = to.parent_path();
  sync_path(parent.empty() ? "." : parent, code);
}

void make_directories(const std::filesystem::path& path, ExitCode code) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error || !std::filesystem::is_directory(path, error)) {
    fail(code, "cannot make the directory {}: {}", path.string(),
         error ? error.message() : std::string("a file of that name is in the way"));
  }
}

}  // namespace motley
