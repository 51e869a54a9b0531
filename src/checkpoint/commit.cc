#include "checkpoint/commit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace motley::checkpoint {
namespace {

constexpr ExitCode code = ExitCode::checkpoint;
constexpr std::string_view step_prefix = "step-";
constexpr std::string_view temporary_prefix = ".tmp-";
constexpr std::string_view aside_prefix = ".old-";

bool is_taken(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::filesystem::path prefixed(const std::filesystem::path& save_dir, std::string_view prefix,
                               const std::string& name) {
  return save_dir / fmt::format("{}{}-{}", prefix, name, ::getpid());
}

// False where the file system knows no exchange (NFS and some parallel ones); other failures throw.
bool exchange(const std::filesystem::path& a, const std::filesystem::path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) {
    sync_path(parent_of(b), code);
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP || errno == EPERM) return false;
  fail(code, "cannot rename {} to {}: {}", a.string(), b.string(), system_message(errno));
}

}  // namespace

std::string directory_name(std::int64_t step) {
  return fmt::format("{}{:08}", step_prefix, step);
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [stop, problem] = std::from_chars(name.data() + step_prefix.size(), end, step);
  if (problem != std::errc() || stop != end || step < 0 || directory_name(step) != name) return std::nullopt;
  return step;
}

std::filesystem::path temporary_path(const std::filesystem::path& save_dir, const std::string& name) {
  return prefixed(save_dir, temporary_prefix, name);
}

bool is_temporary(const std::string& name) {
  return name.starts_with(temporary_prefix);
}

std::filesystem::path aside_path(const std::filesystem::path& save_dir, const std::string& name) {
  return prefixed(save_dir, aside_prefix, name);
}

std::optional<std::int64_t> step_set_aside(const std::string& name) {
  if (!name.starts_with(aside_prefix)) return std::nullopt;
  const std::size_t process = name.rfind('-');
  if (process < aside_prefix.size()) return std::nullopt;
  return step_of(name.substr(aside_prefix.size(), process - aside_prefix.size()));
}

TemporaryTree::TemporaryTree(std::filesystem::path path) : path_(std::move(path)) {
  // A killed process may have had the number of this one.
  remove();
  make_directories(path_, code);
}

void TemporaryTree::remove() const {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void make_durable_directories(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> parents;
  std::error_code ignored;
  for (std::filesystem::path at = std::filesystem::absolute(path, ignored).lexically_normal();
       !std::filesystem::exists(at, ignored) && at.has_relative_path(); at = at.parent_path()) {
    if (at.has_filename()) parents.push_back(at.parent_path());
  }
  make_directories(path, code);
  for (const std::filesystem::path& parent : parents) sync_path(parent, code);
}

void discard(const std::filesystem::path& path) {
  const std::filesystem::path doomed = temporary_path(parent_of(path), "remove-" + path.filename().string());
  std::error_code error;
  std::filesystem::remove_all(doomed, error);
  std::filesystem::rename(path, doomed, error);
  if (error) fail(code, "cannot remove {}: {}", path.string(), error.message());
  // Before anything inside goes: after a power cut there must not be a checkpoint of which a part is missing.
  sync_path(parent_of(path), code);
  std::filesystem::remove_all(doomed, error);
  if (error) fail(code, "cannot remove {}: {}", doomed.string(), error.message());
}

void commit_directory(const std::filesystem::path& finished, const std::filesystem::path& committed,
                      Replace how) {
  if (!is_taken(committed)) {
    rename_durably(finished, committed, code);
    return;
  }
  if (how == Replace::exchange && exchange(finished, committed)) {
    // What is left under the temporary name is the old checkpoint.
    std::error_code ignored;
    std::filesystem::remove_all(finished, ignored);
    return;
  }
  const std::filesystem::path aside = aside_path(parent_of(committed), committed.filename().string());
  if (is_taken(aside)) discard(aside);
  rename_durably(committed, aside, code);
  try {
    rename_durably(finished, committed, code);
  } catch (const Error&) {
    std::error_code ignored;
    if (!is_taken(committed)) std::filesystem::rename(aside, committed, ignored);
    throw;
  }
  discard(aside);
}

void point_link(const std::filesystem::path& save_dir, const std::string& link_name,
                const std::string& target) {
  const std::filesystem::path link = save_dir / link_name;
  const std::filesystem::path temporary = temporary_path(save_dir, link_name);
  std::error_code error;
  std::filesystem::remove(temporary, error);
  std::filesystem::create_symlink(target, temporary, error);
  if (error) fail(code, "cannot make the link {}: {}", link.string(), error.message());
  try {
    rename_durably(temporary, link, code);
  } catch (const Error&) {
    std::filesystem::remove(temporary, error);
    throw;
  }
}

}  // namespace motley::checkpoint
