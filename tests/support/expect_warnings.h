// Warnings that a test expects, which then do not clutter its output.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace motley::test {

// Runs `work`, which warns `count` times; returns what it wrote.
template <class Work>
std::string expect_warnings(int count, const Work& work) {
  testing::internal::CaptureStderr();
  work();
  std::string text = testing::internal::GetCapturedStderr();
  int found = 0;
  for (std::size_t at = text.find("warning: "); at != std::string::npos; at = text.find("warning: ", at + 1))
    ++found;
  EXPECT_EQ(found, count) << text;
  return text;
}

}  // namespace motley::test
