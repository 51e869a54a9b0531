#include "io/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace motley::io {

struct ByteStream::Impl {
  std::string path;
  int file = -1;
  std::uint64_t file_bytes = 0;
  std::uint64_t delivered = 0;
  bool gzip = false;
  bool inside_member = false;  // of a gzip file, which may be several members end to end
  z_stream inflater{};
  std::vector<std::byte> input = std::vector<std::byte>(1 << 18);

  explicit Impl(const std::string& path_) : path(path_) {}
  ~Impl() {
    if (gzip) inflateEnd(&inflater);
    if (file >= 0) ::close(file);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::size_t read_file(std::byte* out, std::size_t bytes) const;
  bool refill();
  bool begin_member();
  std::size_t inflate_into(std::span<std::byte> out);
};

std::size_t ByteStream::Impl::read_file(std::byte* out, std::size_t bytes) const {
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t step = ::read(file, out + got, bytes - got);
    if (step < 0 && errno == EINTR) continue;
    if (step < 0) fail(ExitCode::input, "cannot read {}: {}", path, system_message(errno));
    if (step == 0) break;
    got += static_cast<std::size_t>(step);
  }
  return got;
}

// False at the end of the file.
bool ByteStream::Impl::refill() {
  if (inflater.avail_in > 0) return true;
  const std::size_t got = read_file(input.data(), input.size());
  inflater.next_in = reinterpret_cast<Bytef*>(input.data());
  inflater.avail_in = static_cast<uInt>(got);
  return got > 0;
}

// False at the end of the file; what follows a member must be another one.
bool ByteStream::Impl::begin_member() {
  if (!refill()) return false;
  if (*inflater.next_in != 0x1f) {
    fail(ExitCode::input,
         "{}: the gzip stream is followed by bytes that do not belong to it; expected the end of the file",
         path);
  }
  if (inflateReset(&inflater) != Z_OK) fail(ExitCode::internal, "{}: zlib cannot be reset", path);
  inside_member = true;
  return true;
}

std::size_t ByteStream::Impl::inflate_into(std::span<std::byte> out) {
  std::size_t got = 0;
  while (got < out.size()) {
    if (!inside_member && !begin_member()) break;
    if (!refill()) {
      fail(ExitCode::input,
           "{}: the gzip stream ends too early, after {} bytes of content: the file was cut short", path,
           delivered + got);
    }
    inflater.next_out = reinterpret_cast<Bytef*>(out.data() + got);
    const std::size_t room = std::min<std::size_t>(out.size() - got, std::numeric_limits<uInt>::max());
    inflater.avail_out = static_cast<uInt>(room);
    const int result = inflate(&inflater, Z_NO_FLUSH);
    got += room - inflater.avail_out;
    if (result == Z_STREAM_END) {
      inside_member = false;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      fail(ExitCode::input, "{}: the gzip stream is damaged after {} bytes of content: {}", path,
           delivered + got, inflater.msg != nullptr ? inflater.msg : "zlib gives no reason");
    }
  }
  return got;
}

ByteStream::ByteStream(const std::string& path) : impl_(std::make_unique<Impl>(path)) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    fail(ExitCode::input, "cannot open {}: {}", path, system_message(errno));
  }
  if (S_ISDIR(status.st_mode)) fail(ExitCode::input, "{} is a directory; a file was expected", path);
  if (!S_ISREG(status.st_mode)) fail(ExitCode::input, "{} is not a regular file", path);
  impl_->file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (impl_->file < 0) fail(ExitCode::input, "cannot open {}: {}", path, system_message(errno));
  impl_->file_bytes = static_cast<std::uint64_t>(status.st_size);

  unsigned char magic[2] = {};
  const ssize_t got = ::pread(impl_->file, magic, sizeof magic, 0);
  if (got == 2 && magic[0] == 0x1f && magic[1] == 0x8b) {
    constexpr int gzip_only = 16;
    if (inflateInit2(&impl_->inflater, MAX_WBITS + gzip_only) != Z_OK) {
      fail(ExitCode::internal, "{}: zlib cannot be initialised", path);
    }
    impl_->gzip = true;
  }
}

ByteStream::~ByteStream() = default;

std::size_t ByteStream::read(std::span<std::byte> out) {
  const std::size_t got = impl_->gzip ? impl_->inflate_into(out) : impl_->read_file(out.data(), out.size());
  impl_->delivered += got;
  return got;
}

std::uint64_t ByteStream::drain() {
  std::vector<std::byte> block(1 << 18);
  while (read(block) > 0) {
  }
  return impl_->delivered;
}

std::optional<std::uint64_t> ByteStream::known_size() const {
  if (impl_->gzip) return std::nullopt;
  return impl_->file_bytes;
}

bool ByteStream::compressed() const {
  return impl_->gzip;
}
const std::string& ByteStream::path() const {
  return impl_->path;
}

}  // namespace motley::io
