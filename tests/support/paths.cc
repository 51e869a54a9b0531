#include "support/paths.h"

#include <cstdlib>
#include <stdexcept>

namespace motley::test {

std::filesystem::path source_path(const std::string& below_tests) {
  const char* const moved = std::getenv("MOTLEY_TESTS_DIR");
  return std::filesystem::path(moved != nullptr ? moved : MOTLEY_TESTS_DIR) / below_tests;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (std::filesystem::temp_directory_path() / "motley-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed: " + pattern);
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace motley::test
