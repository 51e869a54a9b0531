#include "balance/slow.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace motley::balance {
namespace {

std::string sentence_of(const char* text, int ranks) {
  try {
    parse_slow(text, ranks);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "no error";
}

TEST(ParseSlow, gives_one_spec_per_rank) {
  const auto specs = parse_slow("1:3x,2:1.5x", 4);
  ASSERT_EQ(specs.size(), 4u);
  EXPECT_EQ(specs[0].factor, 1);
  EXPECT_EQ(specs[1].factor, 3);
  EXPECT_EQ(specs[2].factor, 1.5);
  EXPECT_EQ(specs[3].factor, 1);
}

TEST(ParseSlow, of_nothing_slows_nobody) {
  for (const auto& spec : parse_slow("", 3)) EXPECT_EQ(spec.factor, 1);
}

TEST(ParseSlow, says_what_is_wrong) {
  EXPECT_EQ(sentence_of("4:2x", 4),
            "--slow 4:2x: \"4:2x\" names a rank that does not exist; the ranks of this run are 0 to 3");
  EXPECT_EQ(sentence_of("1:2x,1:3x", 2), "--slow 1:2x,1:3x: rank 1 is named twice");
  EXPECT_EQ(sentence_of("1:0.5x", 2),
            "--slow 1:0.5x: \"1:0.5x\" would make rank 1 faster; the least factor is 1");
  EXPECT_EQ(
      sentence_of("1:2", 2),
      "--slow 1:2: \"1:2\" is not of the form RANK:FACTORx, such as 1:3x (rank 1 takes three times as long)");
  for (const char* text : {"1", "1:", ":", "x", "1:x", "1:2x,", ",1:2x", "1:2xx", "1:nanx", "1:infx", "-1:2x",
                           "1 :2x", "1:-2x", "1:1e999x", "99999999999999:2x", "1:2x;0:2x"}) {
    EXPECT_NE(sentence_of(text, 2), "no error") << text;
  }
}

}  // namespace
}  // namespace motley::balance
