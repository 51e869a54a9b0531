#include "core/files.h"

#include <gtest/gtest.h>

#include "support/paths.h"

namespace motley {
namespace {

TEST(Files, what_is_written_atomically_is_read_back_and_leaves_nothing_else) {
  const test::TemporaryDirectory directory;
  const auto path = directory.path() / "a.txt";
  write_file_atomically(path, "one", ExitCode::input);
  write_file_atomically(path, std::string("t\0wo", 4), ExitCode::input);
  EXPECT_EQ(read_file(path, ExitCode::input), std::string("t\0wo", 4));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++entries;
  EXPECT_EQ(entries, 1);
}

TEST(Files, an_atomic_write_that_fails_leaves_nothing) {
  const test::TemporaryDirectory directory;
  const auto taken = directory.path() / "a.txt";
  std::filesystem::create_directories(taken / "something");
  EXPECT_THROW(write_file_atomically(taken, "one", ExitCode::input), Error);
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++entries;
  EXPECT_EQ(entries, 1);
}

TEST(Files, errors_name_the_file_and_carry_the_code) {
  try {
    read_file("/nowhere/at/all", ExitCode::input);
    FAIL() << "reading a missing file must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    EXPECT_EQ(std::string(error.what()), "cannot open /nowhere/at/all: No such file or directory");
  }
}

TEST(Files, a_file_in_the_way_of_a_directory_is_said) {
  const test::TemporaryDirectory directory;
  write_file(directory.path() / "x", "", ExitCode::input);
  EXPECT_THROW(make_directories(directory.path() / "x" / "y", ExitCode::checkpoint), Error);
  EXPECT_THROW(make_directories(directory.path() / "x", ExitCode::checkpoint), Error);
}

}  // namespace
}  // namespace motley
