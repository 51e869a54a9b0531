// MANIFEST.json: the name, size and XXH3-128 hash of every file of a checkpoint, and a hash over that list
// itself, so that no single changed byte of any file goes unnoticed, the manifest included. Files that it
// does not name are none of its business: people leave notes beside a checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace motley::checkpoint {

inline constexpr const char* manifest_name = "MANIFEST.json";

// Hashes the `files` (plain names) of `directory` as they are on disk and writes the manifest, fsynced.
void write_manifest(const std::filesystem::path& directory, const std::vector<std::string>& files);

// Returns the names that the manifest lists, each checked: there, as long as it was, with the content it had.
// Otherwise Error(checkpoint) about the first one that is not.
std::vector<std::string> verify_manifest(const std::filesystem::path& directory);

// Whether the file `name` of a checkpoint is as its manifest says; not when the manifest itself is not right.
bool is_intact(const std::filesystem::path& directory, const std::string& name);

}  // namespace motley::checkpoint
