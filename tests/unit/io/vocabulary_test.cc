#include "io/vocabulary.h"

#include <gtest/gtest.h>

#include "support/paths.h"
#include "unit/io/test_files.h"

namespace motley::io {
namespace {

const std::string five = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";

class VocabularyFile : public ::testing::Test {
 protected:
  Vocabulary read(const std::string& content) {
    test::write_bytes(path, content);
    return Vocabulary::read(path);
  }
  void expect_input_error(const std::string& content, const std::string& sentence) {
    test::expect_error(ExitCode::input, path + sentence, [&] { read(content); });
  }

  test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "vocab.txt").string();
};

TEST_F(VocabularyFile, ids_are_line_numbers) {
  const Vocabulary words = read("[MASK]\nthe\n[SEP]\n##ing\n[CLS]\n[UNK]\n[PAD]\n\u4e2d\n");
  EXPECT_EQ(words.size(), 8);
  EXPECT_EQ(words.mask(), 0);
  EXPECT_EQ(words.find("the"), 1);
  EXPECT_EQ(words.sep(), 2);
  EXPECT_EQ(words.cls(), 4);
  EXPECT_EQ(words.unk(), 5);
  EXPECT_EQ(words.pad(), 6);
  EXPECT_EQ(words.find("\u4e2d"), 7);
  EXPECT_EQ(words.find("ing"), -1);
  EXPECT_EQ(words.token(3), "##ing");
  EXPECT_TRUE(words.continues_word(3));
  EXPECT_FALSE(words.continues_word(1));
}

TEST_F(VocabularyFile, line_ends_of_windows_a_byte_order_mark_and_a_missing_or_further_line_end_are_fine) {
  EXPECT_EQ(read("\xEF\xBB\xBF[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\na\r\n").tokens(),
            read(five + "a").tokens());
  EXPECT_EQ(read(five + "a\n\n\r\n").size(), 6);
}

// Expected: Python's xxhash.xxh3_64_hexdigest of the tokens, each with its line feed.
TEST_F(VocabularyFile, the_fingerprint_is_of_the_tokens_alone) {
  EXPECT_EQ(vocabulary_fingerprint(read(five + "the\n##ing\n")), "2e886bd7f0568fdc");
  EXPECT_EQ(vocabulary_fingerprint(read("[PAD]\r\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##ing\n\n")),
            "2e886bd7f0568fdc");
  EXPECT_NE(vocabulary_fingerprint(read(five + "##ing\nthe\n")), "2e886bd7f0568fdc");
}

TEST_F(VocabularyFile, a_missing_special_token_is_named) {
  for (const std::string token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) {
    std::string content = five + "a\n";
    content.erase(content.find(token), token.size() + 1);
    expect_input_error(content,
                       ": has no token " + token +
                           "; expected a BERT vocabulary with [PAD], [UNK], [CLS], [SEP] and [MASK]");
  }
}

TEST_F(VocabularyFile, what_is_wrong_is_said_with_its_line) {
  expect_input_error("", ": holds no tokens; expected one per line");
  expect_input_error("\n\r\n", ": holds no tokens; expected one per line");
  expect_input_error(five + "a\n\nb\n", ", line 7: is empty; expected a token");
  expect_input_error(five + "a\nb\na\n", ", line 8: \"a\" is already in line 6; expected each token once");
  expect_input_error(five + "a\n\xff\n", ", line 7: is not UTF-8 text; expected a token");
  expect_input_error(five + "caf\xc3\n", ", line 6: is not UTF-8 text; expected a token");
}

TEST_F(VocabularyFile, a_missing_file_is_named) {
  test::expect_error_with(ExitCode::input, {path, "No such file"}, [&] { Vocabulary::read(path); });
}

}  // namespace
}  // namespace motley::io
