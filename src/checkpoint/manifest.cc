#include "checkpoint/manifest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "core/descriptor.h"
#include "core/error.h"
#include "core/files.h"
#include "core/json.h"

namespace motley::checkpoint {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* format_name = "motley checkpoint 1";
constexpr ExitCode code = ExitCode::checkpoint;

struct FileRecord {
  std::string name;
  std::uint64_t size = 0;
  std::string hash;
};

std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  std::string text;
  for (const unsigned char byte : bytes.digest) text += fmt::format("{:02x}", byte);
  return text;
}

std::string hash_text(const std::string& text) {
  return to_hex(XXH3_128bits(text.data(), text.size()));
}

// Size and hash of a file, read in blocks: a checkpoint may be larger than the memory that is free.
FileRecord record_of(const std::filesystem::path& directory, const std::string& name) {
  const std::string path = (directory / name).string();
  const Descriptor file(path, O_RDONLY, code);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  MOTLEY_CHECK(state != nullptr);
  XXH3_128bits_reset(state.get());
  FileRecord record{name, 0, {}};
  std::vector<char> block(std::size_t{1} << 20);
  while (const std::size_t got = file.read(block.data(), block.size())) {
    XXH3_128bits_update(state.get(), block.data(), got);
    record.size += got;
  }
  record.hash = to_hex(XXH3_128bits_digest(state.get()));
  return record;
}

std::string render(const std::vector<FileRecord>& records) {
  OrderedJson files = OrderedJson::array();
  for (const FileRecord& record : records) {
    files.push_back({{"name", record.name}, {"size", record.size}, {"xxh3_128", record.hash}});
  }
  OrderedJson manifest;
  manifest["format"] = format_name;
  manifest["files"] = files;
  manifest["xxh3_128_of_files"] = hash_text(files.dump());
  return manifest.dump(2) + "\n";
}

std::vector<FileRecord> read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / manifest_name;
  const std::string where = path.string();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail(code, "{} is not a complete checkpoint: it has no {}", directory.string(), manifest_name);
  }
  const std::string text = read_file(path, code);
  const Json manifest = parse_json(text, where, code);
  const auto format = json_get<std::string>(manifest, "format", where, code);
  if (format != format_name) {
    fail(code, "{} has the format \"{}\"; this program knows \"{}\"", where, format, format_name);
  }
  std::vector<FileRecord> records;
  for (const Json& file : json_get<Json>(manifest, "files", where, code)) {
    records.push_back({json_get<std::string>(file, "name", where, code),
                       json_get<std::uint64_t>(file, "size", where, code),
                       json_get<std::string>(file, "xxh3_128", where, code)});
  }
  // There is one way to write a manifest, so a text that is not that way was changed since.
  if (render(records) != text) fail(code, "{} is damaged: its content does not match its own hash", where);
  return records;
}

void verify_file(const std::filesystem::path& directory, const FileRecord& expected) {
  const std::string path = (directory / expected.name).string();
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) fail(code, "{} is missing, though {} lists it", path, manifest_name);
    fail(code, "cannot open {}: {}", path, system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(code, "{} is not a file", path);
  if (static_cast<std::uint64_t>(status.st_size) != expected.size) {
    fail(code, "{} has {} bytes and should have {}", path, status.st_size, expected.size);
  }
  if (record_of(directory, expected.name).hash != expected.hash) {
    fail(code, "{} is damaged: its content does not match the hash in {}", path, manifest_name);
  }
}

}  // namespace

void write_manifest(const std::filesystem::path& directory, const std::vector<std::string>& files) {
  std::vector<FileRecord> records;
  records.reserve(files.size());
  for (const std::string& name : files) records.push_back(record_of(directory, name));
  write_file(directory / manifest_name, render(records), code);
}

std::vector<std::string> verify_manifest(const std::filesystem::path& directory) {
  const std::vector<FileRecord> records = read_manifest(directory);
  std::vector<std::string> names;
  names.reserve(records.size());
  for (const FileRecord& record : records) {
    verify_file(directory, record);
    names.push_back(record.name);
  }
  return names;
}

bool is_intact(const std::filesystem::path& directory, const std::string& name) {
  try {
    for (const FileRecord& record : read_manifest(directory)) {
      if (record.name != name) continue;
      verify_file(directory, record);
      return true;
    }
  } catch (const Error&) {
    // What exactly is wrong is said when the checkpoint is verified as a whole.
  }
  return false;
}

}  // namespace motley::checkpoint
