// safetensors, read and written: 8 bytes of little-endian header length, a JSON header, tensor bytes
// (https://github.com/huggingface/safetensors, "Format").
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"

namespace motley::io {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  const void* data = nullptr;  // when writing: host memory of shape.elements() * size_of(dtype) bytes
  std::uint64_t offset = 0;    // when reading: of the first byte, in the file
};

// Writes the tensors in the given order, data 64-byte aligned by padding the header with spaces, then fsyncs.
void write_safetensors(const std::filesystem::path& path, std::span<const SafetensorsEntry> tensors,
                       const std::map<std::string, std::string>& metadata, ExitCode code);

// A strict reader: a header that is truncated, too long, not JSON, names a tensor twice, has an unknown
// dtype, a shape that does not match its bytes, overlapping or out-of-file ranges or holes, is an Error(code)
// that says which tensor and what was expected.
class SafetensorsFile {
 public:
  SafetensorsFile(const std::filesystem::path& path, ExitCode code);

  const std::vector<SafetensorsEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsEntry* find(const std::string& name) const;
  // Reads one tensor's bytes; `out` must be exactly as long.
  void read(const SafetensorsEntry& entry, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  ExitCode code_;
  std::vector<SafetensorsEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace motley::io
