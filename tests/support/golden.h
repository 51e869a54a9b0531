// Reads golden files (safetensors) without the program's own reader, so that a test of one does not rest on
// the other.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/shape.h"
#include "support/paths.h"

namespace motley::test {

struct GoldenTensor {
  std::string dtype;  // as safetensors names it: "F32", "I32", ...
  Shape shape;
  std::vector<char> bytes;

  template <class T>
  std::vector<T> values() const {
    if (bytes.size() != static_cast<std::size_t>(shape.elements()) * sizeof(T)) {
      throw std::runtime_error("a golden tensor of " + dtype + " is read as another type");
    }
    std::vector<T> result(bytes.size() / sizeof(T));
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
};

// All tensors of a file below tests/golden, by name.
class Golden {
 public:
  explicit Golden(const std::string& file) : file_(file) {
    std::ifstream in(source_path("golden") / file, std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (all.size() < 8) throw std::runtime_error("no golden file " + file);
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, all.data(), sizeof header_bytes);
    const char* data = all.data() + 8 + header_bytes;
    const auto header = nlohmann::json::parse(all.substr(8, header_bytes));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      GoldenTensor tensor;
      tensor.dtype = entry.at("dtype");
      for (const std::int64_t extent : entry.at("shape")) tensor.shape.append(extent);
      tensor.bytes.assign(data + entry.at("data_offsets").at(0).get<std::int64_t>(),
                          data + entry.at("data_offsets").at(1).get<std::int64_t>());
      tensors_[name] = std::move(tensor);
    }
  }

  const GoldenTensor& operator[](const std::string& name) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error(file_ + " has no tensor " + name);
    return found->second;
  }

 private:
  std::string file_;
  std::map<std::string, GoldenTensor> tensors_;
};

}  // namespace motley::test
