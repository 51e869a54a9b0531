// Small helpers for files whose loss would hurt: every failure names the file and what the system said, and
// what is written is on disk when the call returns.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/error.h"

namespace motley {

// The whole file as bytes. Errors carry `code` (input for data, checkpoint for checkpoints).
std::string read_file(const std::filesystem::path& path, ExitCode code);

// Creates or replaces `path` with `content` and fsyncs it. Not atomic: use write_file_atomically for files
// that readers may open at any moment.
void write_file(const std::filesystem::path& path, std::string_view content, ExitCode code);

// Writes under a temporary name in the same directory, fsyncs, renames over `path`, fsyncs the directory. The
// temporary file is removed when that fails; what a killed process leaves is named .tmp-NAME-PID, as
// checkpoint::remove_leftovers() knows it.
void write_file_atomically(const std::filesystem::path& path, std::string_view content, ExitCode code);

// Error when `path` is there and no regular file: renaming would put a file in the place of a directory, a
// device or a pipe. What cannot be looked at cannot be created either, and is said there.
void check_replaceable(const std::filesystem::path& path, ExitCode code);

// Error(usage) when the output is the input, under whatever names.
void refuse_same_file(const std::filesystem::path& input, const std::filesystem::path& output);

// fsync of a file or of a directory (for the directory entry of something created or renamed in it).
void sync_path(const std::filesystem::path& path, ExitCode code);

// rename(2), then fsync of the parent directory.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to, ExitCode code);

// mkdir -p; the error says which component could not be made and why.
void make_directories(const std::filesystem::path& path, ExitCode code);

// The text of errno value `error`.
std::string system_message(int error);

}  // namespace motley
