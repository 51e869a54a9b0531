// Lines, documents, pieces and sentences: how a corpus is cut before it is tokenized.
#include <gtest/gtest.h>
#include <zlib.h>

#include <set>

#include "io/document_pieces.h"
#include "io/line_reader.h"
#include "io/sentence_splitter.h"
#include "support/paths.h"
#include "unit/io/test_files.h"

namespace motley::io {
namespace {

using Strings = std::vector<std::string>;

class TextInput : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& content) {
    const std::string path = (directory.path() / name).string();
    test::write_bytes(path, content);
    return path;
  }
  std::string gzip_file(const std::string& name, const std::string& content) {
    const std::string path = (directory.path() / name).string();
    gzFile out = gzopen(path.c_str(), "wb");
    gzwrite(out, content.data(), static_cast<unsigned>(content.size()));
    gzclose(out);
    return path;
  }

  // The lines; "<end>" where a file ends.
  static Strings lines_of(const Strings& paths, std::size_t max_line_bytes = 1000) {
    LineReader reader(paths, max_line_bytes);
    Strings lines;
    std::string_view line;
    for (auto event = reader.next(line); event != LineReader::Event::end; event = reader.next(line)) {
      lines.emplace_back(event == LineReader::Event::line ? line : "<end>");
    }
    return lines;
  }

  test::TemporaryDirectory directory;
};

TEST_F(TextInput, lines_of_all_files_in_turn_compressed_or_not) {
  EXPECT_EQ(
      lines_of({file("a", "one\r\ntwo\n\nthree"), gzip_file("b", "four\n"), file("c", ""), file("d", "\n")}),
      (Strings{"one", "two", "", "three", "<end>", "four", "<end>", "<end>", "", "<end>"}));
}

TEST_F(TextInput, lines_are_the_same_wherever_a_block_of_the_file_ends) {
  std::string content;
  Strings expected;
  for (int i = 0; i < 40000; ++i) {
    expected.push_back(std::string(static_cast<std::size_t>(i % 97), static_cast<char>('a' + i % 26)));
    content += expected.back() + "\n";
  }
  expected.emplace_back("<end>");
  EXPECT_EQ(lines_of({file("long", content)}), expected);
  EXPECT_EQ(lines_of({gzip_file("long.gz", content)}), expected);
}

TEST_F(TextInput, long_lines_are_cut_behind_a_space_and_never_inside_a_character) {
  EXPECT_EQ(lines_of({file("a", "aaaa bbb cccccccccccc dd\nx\n")}, 10),
            (Strings{"aaaa bbb ", "ccccccccc", "ccc dd", "x", "<end>"}));
  const std::string umlauts = "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4";  // 12 bytes
  EXPECT_EQ(lines_of({file("b", "x" + umlauts + "\n")}, 8),
            (Strings{"x\u00e4\u00e4\u00e4", "\u00e4\u00e4\u00e4", "<end>"}));
  std::string all;
  const std::string bytes(100000, '\x80');
  for (const std::string& piece : lines_of({file("c", bytes)}, 64)) {
    EXPECT_LE(piece.size(), 64U);
    if (piece != "<end>") all += piece;
  }
  EXPECT_EQ(all, bytes);
}

TEST_F(TextInput, line_numbers_count_lines_not_pieces) {
  LineReader reader({file("a", "aaaa bbb cccccccccccc dd\nx\n")}, 10);
  std::string_view line;
  std::vector<std::uint64_t> numbers;
  while (reader.next(line) == LineReader::Event::line) numbers.push_back(reader.line_number());
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 1, 1, 2}));
}

TEST_F(TextInput, blank_is_what_unicode_calls_whitespace) {
  for (const char* line : {"", "  \t", "\u00a0\u3000", "\u2028"}) EXPECT_TRUE(is_blank(line)) << line;
  for (const char* line : {"a", " . ", "\u200b", "\xff", "\u00a0x"}) EXPECT_FALSE(is_blank(line)) << line;
}

// `documents` documents of `lines` lines, each line with its document's number.
std::string corpus(int documents, int lines, int first = 0) {
  std::string text;
  for (int d = first; d < first + documents; ++d) {
    for (int l = 0; l < lines; ++l) text += fmt::format("document {} has a line {} that is so long\n", d, l);
    text += "\n";
  }
  return text;
}

std::vector<Piece> pieces_of(const Strings& paths, std::uint64_t bytes = DocumentPieces::min_piece_bytes) {
  DocumentPieces reader(paths, bytes);
  std::vector<Piece> pieces;
  for (Piece piece; reader.next(piece);) pieces.push_back(std::move(piece));
  return pieces;
}

TEST_F(TextInput, pieces_hold_whole_documents_in_order) {
  const std::string text = corpus(1000, 7);
  const std::vector<Piece> pieces = pieces_of({file("a", text)});
  ASSERT_GT(pieces.size(), 3U);
  std::string all;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(pieces[i].index, i);
    if (i + 1 < pieces.size()) {
      EXPECT_GE(pieces[i].text.size(), DocumentPieces::min_piece_bytes);
    }
    EXPECT_LT(pieces[i].text.size(), 2 * DocumentPieces::min_piece_bytes);
    std::size_t end = 0;
    for (const Document& document : pieces[i].documents) {
      EXPECT_EQ(document.first, end);
      EXPECT_EQ(document.number, number++);
      end = document.end;
      all += pieces[i].text.substr(document.first, document.end - document.first) + "\n";
    }
    EXPECT_EQ(end, pieces[i].text.size());
  }
  EXPECT_EQ(all, text);
}

TEST_F(TextInput, a_document_ends_with_its_file_and_several_blank_lines_are_one) {
  const std::vector<Piece> pieces =
      pieces_of({file("a", "\n\na1\n \n\u3000\nb1\nb2"), file("b", "c1\n\n"), gzip_file("c", "d1\n")});
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].text, "a1\nb1\nb2\nc1\nd1\n");
  EXPECT_EQ(pieces[0].documents.size(), 4U);
  EXPECT_EQ(pieces[0].first_place, (directory.path() / "a").string() + ", line 3");
}

TEST_F(TextInput, a_document_longer_than_a_piece_is_cut_at_lines_and_its_parts_know_that) {
  const std::string text = corpus(1, 20000) + corpus(3, 2, 1);
  const std::vector<Piece> pieces = pieces_of({file("a", text)});
  ASSERT_GT(pieces.size(), 5U);
  std::string all;
  std::set<std::uint64_t> numbers;
  for (const Piece& piece : pieces) {
    EXPECT_GE(piece.documents.size(), 2U);
    EXPECT_LT(piece.text.size(), 2 * DocumentPieces::min_piece_bytes);
    for (const Document& document : piece.documents) numbers.insert(document.number);
    all += piece.text;
  }
  EXPECT_EQ(numbers, (std::set<std::uint64_t>{0, 1, 2, 3}));
  std::string lines = text;
  for (std::size_t at = lines.find("\n\n"); at != std::string::npos; at = lines.find("\n\n"))
    lines.erase(at, 1);
  EXPECT_EQ(all, lines);
}

// However many documents there are, no piece is left with a single one.
TEST_F(TextInput, every_piece_has_two_documents) {
  for (int documents = 2; documents < 40; ++documents) {
    std::size_t count = 0;
    for (const Piece& piece : pieces_of({file("a", corpus(documents, 300))})) {
      EXPECT_GE(piece.documents.size(), 2U) << documents;
      count += piece.documents.size();
    }
    EXPECT_EQ(count, static_cast<std::size_t>(documents));
  }
}

TEST_F(TextInput, no_text_and_a_single_document_are_said) {
  const std::string empty = file("empty", ""), blank = file("blank", "\n \n\n"), one = file("one", "a\nb\n");
  test::expect_error(ExitCode::input, empty + " holds no text; expected sentences, one per line",
                     [&] { pieces_of({empty}); });
  test::expect_error(ExitCode::input, "the 2 files hold no text; expected sentences, one per line", [&] {
    pieces_of({empty, blank});
  });
  const std::string said =
      " a single document; sentence pairs need at least two, with an empty line between them";
  test::expect_error(ExitCode::input, one + " holds" + said, [&] { pieces_of({one}); });
  const std::string huge = file("huge", corpus(1, 10000));
  test::expect_error(ExitCode::input, huge + " holds" + said, [&] { pieces_of({huge}); });
}

TEST_F(TextInput, sentences_of_running_text) {
  SentenceSplitter splitter;
  const auto split = [&](std::string_view line) {
    const auto& found = splitter.split(line);
    return Strings(found.begin(), found.end());
  };
  EXPECT_EQ(split("It rained. Did it stop?  No! \"Not yet.\" He left"),
            (Strings{"It rained.", "Did it stop?", "No!", "\"Not yet.\"", "He left"}));
  EXPECT_EQ(split("Mr. Smith paid 3.50 dollars, e.g. in cash. Then he left."),
            (Strings{"Mr. Smith paid 3.50 dollars, e.g. in cash.", "Then he left."}));
  EXPECT_EQ(split("\u5929\u6c14\u597d\u3002\u6211\u4eec\u8d70\u5427\u3002"),
            (Strings{"\u5929\u6c14\u597d\u3002", "\u6211\u4eec\u8d70\u5427\u3002"}));
  EXPECT_EQ(split("One. \xff Two."), (Strings{"One.", "\xff Two."}));
  EXPECT_EQ(split(""), Strings{});
}

}  // namespace
}  // namespace motley::io
