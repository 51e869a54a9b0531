// The names of the protocol in directory.h and its one critical step: how a finished directory becomes a
// checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace motley::checkpoint {

// "step-00001000"
std::string directory_name(std::int64_t step);
// The step of a name as directory_name() spells it; nullopt for every other name.
std::optional<std::int64_t> step_of(const std::string& name);

// SAVE_DIR/.tmp-NAME-PID: what a killed process may leave behind under this name is worthless.
std::filesystem::path temporary_path(const std::filesystem::path& save_dir, const std::string& name);
bool is_temporary(const std::string& name);

// SAVE_DIR/.old-NAME-PID: a committed checkpoint while its successor of the same step takes its name. It
// counts as long as there is no NAME.
std::filesystem::path aside_path(const std::filesystem::path& save_dir, const std::string& name);
// The step of such a name; nullopt for every other name.
std::optional<std::int64_t> step_set_aside(const std::string& name);

// A directory of its own for what is not committed yet; goes with everything in it unless it was renamed.
class TemporaryTree {
 public:
  explicit TemporaryTree(std::filesystem::path path);
  ~TemporaryTree() { remove(); }
  TemporaryTree(const TemporaryTree&) = delete;
  TemporaryTree& operator=(const TemporaryTree&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  void remove() const;
  std::filesystem::path path_;
};

// mkdir -p whose result survives a power cut: each new directory is an entry of its parent.
void make_durable_directories(const std::filesystem::path& path);

// Removes a directory by renaming it to a temporary name first, so that at no moment there is half a
// checkpoint.
void discard(const std::filesystem::path& path);

enum class Replace : std::uint8_t {
  exchange,  // both names in one system call (renameat2); where the file system cannot, by way of aside
  aside,     // the old one to its .old- name, the new one in, the old one away
};

// Gives the finished and fsynced directory `finished` the name `committed`, which may exist. Durable on
// return. A kill at any moment leaves the old or the new one in place (or the old one under its .old- name).
void commit_directory(const std::filesystem::path& finished, const std::filesystem::path& committed,
                      Replace how = Replace::exchange);

// Makes SAVE_DIR/link_name a symbolic link to its sibling `target`, replacing a link of that name by rename.
void point_link(const std::filesystem::path& save_dir, const std::string& link_name,
                const std::string& target);

}  // namespace motley::checkpoint
