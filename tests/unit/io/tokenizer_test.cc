#include "io/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/paths.h"

namespace motley::io {
namespace {

using Ids = std::vector<std::int32_t>;

Ids encode(Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.encode(text, ids);
  return ids;
}

class TokenizerGolden : public ::testing::Test {
 protected:
  const nlohmann::json golden =
      nlohmann::json::parse(std::ifstream(test::source_path("golden/tokenizer.json")));
  const Vocabulary vocabulary{golden.at("vocabulary").get<std::vector<std::string>>(), "tokenizer.json"};
  const std::vector<std::string> lines = golden.at("lines").get<std::vector<std::string>>();

  void compare(const char* kind, bool lower_case) {
    Tokenizer tokenizer(vocabulary, lower_case);
    ASSERT_EQ(golden.at(kind).size(), lines.size());
    // Twice: the second time most runs are remembered.
    for (int round = 0; round < 2; ++round) {
      for (std::size_t i = 0; i < lines.size(); ++i) {
        EXPECT_EQ(encode(tokenizer, lines[i]), golden.at(kind)[i].get<Ids>()) << lines[i];
      }
    }
    EXPECT_EQ(tokenizer.replaced_invalid(), 0U);
  }
};

TEST_F(TokenizerGolden, uncased_ids_are_those_of_hugging_face) {
  compare("uncased", true);
}
TEST_F(TokenizerGolden, cased_ids_are_those_of_hugging_face) {
  compare("cased", false);
}

TEST_F(TokenizerGolden, a_long_text_has_the_tokens_of_its_lines_one_after_the_other) {
  Tokenizer tokenizer(vocabulary, true), fresh(vocabulary, true);
  std::string text;
  Ids expected;
  for (int round = 0; round < 50; ++round) {
    for (const std::string& line : lines) {
      text += line + "\n";
      fresh.encode(line, expected);
    }
  }
  EXPECT_EQ(encode(tokenizer, text), expected);
}

// Bytes that are not UTF-8, and what Python's decoder with errors="replace" makes of them: how often U+FFFD.
TEST_F(TokenizerGolden, each_invalid_piece_is_counted_and_dropped) {
  const struct {
    std::string bytes, same_as;
    std::uint64_t replaced;
  } cases[] = {
      {"fox\xff"
       "fox",
       "foxfox", 1},
      {"\x80", "", 1},
      {"caf\xc3", "caf", 1},      // cut short at the end
      {"caf\xc3 x", "caf x", 1},  // by a space
      {"a\xe4\xb8"
       "b",
       "ab", 1},  // two bytes of three are one piece
      {"a\xf0\x9f\x91"
       "b",
       "ab", 1},  // three of four
      {"a\xf0\x9f\x91\xf0\x9f\x91\x8d", "a\U0001f44d", 1},
      {"\xc0\xaf", "", 2},          // an overlong "/"
      {"\xed\xa0\x80", "", 3},      // a surrogate
      {"\xf4\x90\x80\x80", "", 4},  // beyond U+10FFFF
      {"\xe0\x80\x80,\xf5", ",", 4},
  };
  Tokenizer tokenizer(vocabulary, true);
  std::uint64_t replaced = 0;
  for (int round = 0; round < 2; ++round) {
    for (const auto& [bytes, same_as, count] : cases) {
      EXPECT_EQ(encode(tokenizer, bytes), encode(tokenizer, same_as)) << same_as;
      replaced += count;
      EXPECT_EQ(tokenizer.replaced_invalid(), replaced) << same_as;
    }
  }
}

// More distinct words than are remembered, so that they push each other out.
TEST(Tokenizer, what_is_remembered_never_changes_the_ids) {
  std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (int c = '0'; c <= '9'; ++c) {
    tokens.emplace_back(1, static_cast<char>(c));
    tokens.push_back(fmt::format("##{}", static_cast<char>(c)));
  }
  Tokenizer tokenizer({tokens, "the test"}, true);
  for (int round = 0; round < 2; ++round) {
    for (int number = 100000; number < 200000; ++number) {
      const std::string word = std::to_string(number);
      Ids expected;
      for (const char c : word) expected.push_back(5 + 2 * (c - '0') + (expected.empty() ? 0 : 1));
      ASSERT_EQ(encode(tokenizer, word), expected) << word;
    }
  }
}

TEST(Tokenizer, the_longest_piece_is_taken_and_one_unknown_piece_makes_the_word_unknown) {
  Tokenizer tokenizer(
      {{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "abc", "##c", "##cd", "##d", "##", "#"},
       "the test"},
      true);
  EXPECT_EQ(encode(tokenizer, "abcd"), (Ids{6, 9}));
  EXPECT_EQ(encode(tokenizer, "abccd"), (Ids{6, 8}));
  EXPECT_EQ(encode(tokenizer, "abe abc"), (Ids{1, 6}));
  EXPECT_EQ(encode(tokenizer, "##c"), (Ids{11, 11, 1}));
}

}  // namespace
}  // namespace motley::io
