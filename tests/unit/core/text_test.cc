#include "core/text.h"

#include <gtest/gtest.h>

namespace motley {
namespace {

TEST(Trimmed, has_no_white_space_at_its_ends) {
  EXPECT_EQ(trimmed("a b"), "a b");
  EXPECT_EQ(trimmed(" \t a  b\r\n"), "a  b");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed(" \n "), "");
}

}  // namespace
}  // namespace motley
