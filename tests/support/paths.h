// Where tests find their golden files and put what they write.
#pragma once

#include <filesystem>
#include <string>

namespace motley::test {

// A file below tests/, e.g. source_path("golden/optimizers.safetensors"): below the folder that MOTLEY_TESTS_DIR in
// the environment names, or else below that of the checkout.
std::filesystem::path source_path(const std::string& below_tests);

// A fresh directory of its own that is removed with everything in it when the object goes.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace motley::test
