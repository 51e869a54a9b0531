// A model directory in Hugging Face's form, read by someone who does not trust it: config.json is the task's
// business, this is model.safetensors, or the files that model.safetensors.index.json names.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "train/name_rules.h"

namespace motley::train {

class ModelDirectory {
 public:
  // Whether `path` has a file of parameters.
  static bool is_one(const std::filesystem::path& path);

  // Opens the files and reads their headers. Error(input) for one that is missing or not right.
  explicit ModelDirectory(const std::filesystem::path& path);

  // Reads float32, float16 and bfloat16 tensors into the float32 memory of wanted[i].data. Everything that
  // does not fit (names, shapes, types, ties) is listed in one Error(input), and then nothing has been
  // written. Returns the optional parts that are absent, with their parameters; their memory is left as it
  // was.
  std::vector<std::string> read(std::span<const io::SafetensorsEntry> wanted, const NameRules& rules) const;

 private:
  struct Tensor {
    const io::SafetensorsFile* file = nullptr;
    const io::SafetensorsEntry* entry = nullptr;
  };
  using Tensors = std::map<std::string, Tensor>;
  struct Matching;

  void open_index(const std::filesystem::path& index);
  Tensors by_name(const NameRules& rules, std::vector<std::string>& twice) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<io::SafetensorsFile>> files_;
};

}  // namespace motley::train
