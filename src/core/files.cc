#include "core/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <system_error>

#include "core/descriptor.h"

namespace motley {

std::string system_message(int error) {
  return std::system_category().message(error);
}

std::string read_file(const std::filesystem::path& path, ExitCode code) {
  const Descriptor file(path, O_RDONLY, code);
  std::string content;
  std::string block(1 << 20, '\0');
  while (const std::size_t got = file.read(block.data(), block.size())) content.append(block, 0, got);
  return content;
}

void write_file(const std::filesystem::path& path, std::string_view content, ExitCode code) {
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC, code);
  file.write_all(content.data(), content.size());
  file.sync();
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content, ExitCode code) {
  const std::filesystem::path temporary =
      path.parent_path() / fmt::format(".tmp-{}-{}", path.filename().string(), ::getpid());
  try {
    write_file(temporary, content, code);
    rename_durably(temporary, path, code);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void check_replaceable(const std::filesystem::path& path, ExitCode code) {
  std::error_code unknown;
  const std::filesystem::file_status existing = std::filesystem::status(path, unknown);
  if (is_directory(existing)) fail(code, "cannot write {}: it is a directory", path.string());
  if (exists(existing) && !is_regular_file(existing))
    fail(code, "cannot write {}: it is there and not a regular file", path.string());
}

void refuse_same_file(const std::filesystem::path& input, const std::filesystem::path& output) {
  std::error_code ignored;
  if (std::filesystem::equivalent(input, output, ignored)) {
    fail(ExitCode::usage, "the output {} is the input {}; expected another name", output.string(),
         input.string());
  }
}

void sync_path(const std::filesystem::path& path, ExitCode code) {
  Descriptor(path, O_RDONLY, code).sync();
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
