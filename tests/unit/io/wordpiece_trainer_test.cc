#include "io/wordpiece_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/philox.h"
#include "io/tokenizer.h"
#include "io/word_counts.h"
#include "unit/io/test_files.h"

namespace motley::io {
namespace {

using Strings = std::vector<std::string>;
using Counts = std::vector<std::pair<std::string, std::uint64_t>>;

Strings learn(const Counts& words, const WordpieceOptions& options, std::size_t portion = 1000000) {
  WordpieceTrainer trainer(words, options);
  while (trainer.step(portion)) {
  }
  return trainer.tokens();
}

// The definition, without any bookkeeping: all pairs are counted anew before each merge.
Strings learn_slowly(const Counts& words, const WordpieceOptions& options) {
  Strings tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  std::set<std::string> characters, pieces;
  std::vector<std::pair<Strings, std::uint64_t>> spelled;
  for (const auto& [word, count] : words) {
    Strings spelling;
    for (const char c : word) {
      characters.insert(std::string(1, c));
      spelling.push_back(spelling.empty() ? std::string(1, c) : fmt::format("##{}", c));
      if (spelling.size() > 1) pieces.insert(spelling.back());
    }
    spelled.emplace_back(spelling, count);
  }
  tokens.insert(tokens.end(), characters.begin(), characters.end());
  tokens.insert(tokens.end(), pieces.begin(), pieces.end());
  const auto id = [&](const std::string& token) {
    return std::find(tokens.begin(), tokens.end(), token) - tokens.begin();
  };
  while (tokens.size() < options.size) {
    std::map<std::pair<std::ptrdiff_t, std::ptrdiff_t>, std::uint64_t> pairs;
    for (const auto& [spelling, count] : spelled) {
      for (std::size_t i = 0; i + 1 < spelling.size(); ++i)
        pairs[{id(spelling[i]), id(spelling[i + 1])}] += count;
    }
    const auto best = std::max_element(pairs.begin(), pairs.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (best == pairs.end() || best->second < options.min_frequency) break;
    const std::string left = tokens[static_cast<std::size_t>(best->first.first)];
    const std::string right = tokens[static_cast<std::size_t>(best->first.second)];
    const std::string merged = left + right.substr(2);
    if (std::find(tokens.begin(), tokens.end(), merged) == tokens.end()) tokens.push_back(merged);
    for (auto& [spelling, count] : spelled) {
      for (std::size_t i = 0; i + 1 < spelling.size(); ++i) {
        if (spelling[i] != left || spelling[i + 1] != right) continue;
        spelling[i] = merged;
        spelling.erase(spelling.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return tokens;
}

// Few letters and many repeats, so that pairs overlap, tie and come about in several ways.
Counts random_words(std::uint32_t slot, int number, int letters) {
  const RandomKey key(3, Purpose::shuffle, 0, 0);
  std::uint32_t element = 0;
  const auto draw = [&](std::uint32_t below) { return random_u32(key, slot, element++) % below; };
  std::map<std::string, std::uint64_t> words;
  for (int i = 0; i < number; ++i) {
    std::string word;
    for (std::uint32_t n = 1 + draw(9); n > 0; --n) {
      word += static_cast<char>('a' + draw(static_cast<std::uint32_t>(letters)));
    }
    words[word] += 1 + draw(5);
  }
  return {words.begin(), words.end()};
}

TEST(WordpieceTrainer, learns_what_counting_anew_before_each_merge_gives) {
  for (std::uint32_t slot = 0; slot < 60; ++slot) {
    const Counts words = random_words(slot, 60, 1 + static_cast<int>(slot % 6));
    for (const std::uint64_t min_frequency : {1U, 3U}) {
      const WordpieceOptions options{120, min_frequency, 1000};
      const Strings expected = learn_slowly(words, options);
      ASSERT_EQ(learn(words, options), expected) << slot;
      ASSERT_EQ(learn(words, options, 1), expected) << "in portions";
    }
  }
}

TEST(WordpieceTrainer, stops_at_the_size_asked_for) {
  const Counts words = random_words(1, 300, 5);
  for (const std::size_t size : {20U, 50U, 100U}) EXPECT_EQ(learn(words, {size, 1, 1000}).size(), size);
}

TEST(WordpieceTrainer, a_size_without_room_for_the_characters_is_said) {
  test::expect_error(
      ExitCode::usage,
      "--size is 8; the special tokens and the 3 characters of the text, as words and as pieces, need 10",
      [] {
        learn({{"abc", 4}}, {8, 2, 1000});
      });
}

TEST(WordpieceTrainer, rare_characters_and_the_words_that_have_them_are_left_out) {
  EXPECT_EQ(learn({{"ab", 9}, {"\u4e2d", 3}, {"b\u00e9", 2}}, {100, 2, 3}),
            (Strings{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "\u4e2d", "##b", "ab"}));
}

TEST(WordpieceTrainer, every_word_it_has_seen_can_be_encoded) {
  WordCounts counts(true);
  counts.add("the cat sat on the mat, the r\u00e9sum\u00e9 \u4e2d\u6587 [MASK] t");
  const Vocabulary vocabulary(learn(counts.sorted(), {60, 1, 1000}), "the test");
  Tokenizer tokenizer(vocabulary, true);
  std::vector<std::int32_t> ids;
  tokenizer.encode("The mat sat, \u4e2d resume on cat", ids);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), vocabulary.unk()), 0);
  EXPECT_GE(ids.size(), 8U);
}

TEST(WordCounts, counts_words_as_the_tokenizer_cuts_them) {
  WordCounts uncased(true), cased(false);
  for (WordCounts* counts : {&uncased, &cased}) {
    counts->add("The the caf\u00e9, th\u200be [SEP] cafe\u0301 \u4e2d\u6587\u4e2d");
    counts->add(std::string(101, 'x') + " a\xff");
  }
  EXPECT_EQ(uncased.sorted(),
            (Counts{{"the", 3}, {"cafe", 2}, {"\u4e2d", 2}, {",", 1}, {"a", 1}, {"\u6587", 1}}));
  EXPECT_EQ(cased.sorted(), (Counts{{"the", 2},
                                    {"\u4e2d", 2},
                                    {",", 1},
                                    {"The", 1},
                                    {"a", 1},
                                    {"cafe\u0301", 1},
                                    {"caf\u00e9", 1},
                                    {"\u6587", 1}}));
  EXPECT_EQ(uncased.replaced_invalid(), 1U);
  EXPECT_EQ(uncased.forgotten_up_to(), 0U);
}

TEST(WordCounts, beyond_the_limit_the_rarest_words_are_forgotten) {
  WordCounts counts(true, 100);
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20; ++i) counts.add(fmt::format("frequent{}", i));
    for (int i = 0; i < 30; ++i) counts.add(fmt::format("rare{}", round * 30 + i));
    ASSERT_LE(counts.distinct(), 100U);
  }
  EXPECT_GE(counts.forgotten_up_to(), 1U);
  const Counts words = counts.sorted();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(words[static_cast<std::size_t>(i)].second, 50U);
}

}  // namespace
}  // namespace motley::io
