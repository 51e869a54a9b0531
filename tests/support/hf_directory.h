// Model directories to read, right ones and wrong ones: the golden one of tests/golden/exchange.py with changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/files.h"
#include "core/json.h"
#include "io/safetensors.h"
#include "support/paths.h"

namespace motley::test {

// A tensor that owns its numbers.
struct OwnedTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;

  template <class T>
  static OwnedTensor of(const std::string& name, const Shape& shape, const std::vector<T>& values) {
    const auto* const begin = reinterpret_cast<const std::byte*>(values.data());
    return {name, DTypeOf<T>::value, shape, {begin, begin + values.size() * sizeof(T)}};
  }
};
using OwnedTensors = std::vector<OwnedTensor>;

inline OwnedTensors read_tensors(const std::filesystem::path& path) {
  const io::SafetensorsFile file(path, ExitCode::input);
  OwnedTensors tensors;
  for (const io::SafetensorsEntry& entry : file.tensors()) {
    const auto size = static_cast<std::size_t>(entry.shape.elements()) * size_of(entry.dtype);
    tensors.push_back({entry.name, entry.dtype, entry.shape, std::vector<std::byte>(size)});
    file.read(entry, tensors.back().bytes);
  }
  return tensors;
}

inline void write_tensors(const std::filesystem::path& path, const OwnedTensors& tensors) {
  std::vector<io::SafetensorsEntry> entries;
  for (const OwnedTensor& tensor : tensors) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes.data(), 0});
  }
  io::write_safetensors(path, entries, {{"format", "pt"}}, ExitCode::input);
}

inline std::filesystem::path golden_directory() {
  return source_path("golden") / "exchange";
}

// Writes the golden directory with other tensors and, where keys are given, another config.
inline void write_hf_directory(const std::filesystem::path& path,
                               const std::function<void(OwnedTensors&)>& change,
                               const nlohmann::json& config_changes = nlohmann::json::object()) {
  std::filesystem::create_directories(path);
  std::filesystem::copy(golden_directory() / "vocab.txt", path / "vocab.txt");
  auto config = nlohmann::json::parse(read_file(golden_directory() / "config.json", ExitCode::input));
  config.update(config_changes);
  write_file(path / "config.json", config.dump(), ExitCode::input);
  OwnedTensors tensors = read_tensors(golden_directory() / "model.safetensors");
  change(tensors);
  write_tensors(path / "model.safetensors", tensors);
}

inline OwnedTensor& named(OwnedTensors& tensors, const std::string& name) {
  for (OwnedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("there is no tensor " + name);
}

inline void remove_prefix(OwnedTensors& tensors, const std::string& prefix) {
  std::erase_if(tensors, [&](const OwnedTensor& tensor) { return tensor.name.starts_with(prefix); });
}

// What is in a directory, by name, sorted.
inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace motley::test
