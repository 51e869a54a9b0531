#include "io/masking.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace motley::io {
namespace {

constexpr std::int32_t cls = 2, sep = 3, mask = 4, first_word = 5, first_piece = 505, tokens = 1005;

Vocabulary vocabulary() {
  std::vector<std::string> list = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  for (int i = 0; i < 500; ++i) list.push_back(fmt::format("w{}", i));
  for (int i = 0; i < 500; ++i) list.push_back(fmt::format("##p{}", i));
  return {list, "the test"};
}

// [CLS] a [SEP] b [SEP] with `n` tokens in all, all of them words.
std::vector<std::int32_t> sequence(int n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = first_word + i % 500;
  ids[0] = cls;
  ids[static_cast<std::size_t>(n / 2)] = ids[static_cast<std::size_t>(n - 1)] = sep;
  return ids;
}

struct Masked {
  std::vector<std::int32_t> ids, positions, labels;
};

Masked run(const MaskingOptions& options, std::vector<std::int32_t> ids, std::uint32_t slot,
           std::uint32_t time = 0) {
  static const Vocabulary words = vocabulary();
  Masked result{std::move(ids), {}, {}};
  mask_sequence(options, words, RandomKey(7, Purpose::masking, 0, time), slot, result.ids, result.positions,
                result.labels);
  return result;
}

TEST(Masking, chooses_as_many_as_the_reference_says) {
  // round() of Python: halves to even.
  const std::pair<int, std::size_t> expected[] = {{4, 1},  {5, 1},    {10, 2},  {30, 4},
                                                  {50, 8}, {128, 19}, {140, 20}};
  for (const auto& [n, number] : expected) EXPECT_EQ(run({}, sequence(n), 0).positions.size(), number) << n;
  EXPECT_EQ(run({0.15, 7, false}, sequence(128), 0).positions.size(), 7U);
}

TEST(Masking, never_chooses_cls_or_sep_and_keeps_what_it_replaced) {
  for (std::uint32_t slot = 0; slot < 500; ++slot) {
    const std::vector<std::int32_t> original = sequence(40);
    const Masked masked = run({0.5, 100, false}, original, slot);
    std::vector<std::int32_t> restored = masked.ids;
    for (std::size_t i = 0; i < masked.positions.size(); ++i) {
      if (i > 0) {
        ASSERT_LT(masked.positions[i - 1], masked.positions[i]);
      }
      ASSERT_NE(masked.labels[i], cls);
      ASSERT_NE(masked.labels[i], sep);
      restored[static_cast<std::size_t>(masked.positions[i])] = masked.labels[i];
    }
    ASSERT_EQ(restored, original);
  }
}

TEST(Masking, a_sequence_without_words_is_left_alone) {
  const Masked masked = run({}, {cls, sep, sep}, 0);
  EXPECT_TRUE(masked.positions.empty());
  EXPECT_EQ(masked.ids, (std::vector<std::int32_t>{cls, sep, sep}));
}

TEST(Masking, appends_behind_what_is_there) {
  static const Vocabulary words = vocabulary();
  std::vector<std::int32_t> ids = sequence(20), positions = {99}, labels = {98};
  mask_sequence({}, words, RandomKey(1, Purpose::masking, 0, 0), 0, ids, positions, labels);
  EXPECT_EQ(positions.size(), 4U);
  EXPECT_EQ(positions[0], 99);
  EXPECT_EQ(labels[0], 98);
}

TEST(Masking, depends_on_key_and_slot_alone) {
  EXPECT_EQ(run({}, sequence(100), 3, 5).ids, run({}, sequence(100), 3, 5).ids);
  EXPECT_NE(run({}, sequence(100), 3, 5).positions, run({}, sequence(100), 4, 5).positions);
  EXPECT_NE(run({}, sequence(100), 3, 5).positions, run({}, sequence(100), 3, 6).positions);
}

// 5 standard deviations of a binomial: one false alarm in about two million.
void expect_share(std::int64_t count, std::int64_t of, double probability, const char* what) {
  const double mean = static_cast<double>(of) * probability;
  EXPECT_NEAR(static_cast<double>(count), mean, 5 * std::sqrt(mean * (1 - probability))) << what;
}

TEST(Masking, eighty_ten_ten_and_every_position_alike) {
  std::int64_t all = 0, masks = 0, kept = 0, other = 0, pieces = 0;
  std::vector<std::int64_t> at(100);
  const std::int64_t sequences = 20000;
  for (std::uint32_t slot = 0; slot < sequences; ++slot) {
    const Masked masked = run({}, sequence(100), slot);
    for (std::size_t i = 0; i < masked.positions.size(); ++i) {
      const auto position = static_cast<std::size_t>(masked.positions[i]);
      const std::int32_t now = masked.ids[position];
      ++all;
      ++at[position];
      masks += now == mask;
      kept += now == masked.labels[i];
      if (now != mask && now != masked.labels[i]) {
        ++other;
        pieces += now >= first_piece;
      }
    }
  }
  EXPECT_EQ(all, sequences * 15);
  expect_share(masks, all, 0.8 + 0.1 / tokens, "[MASK]");
  expect_share(kept, all, 0.1 + 0.1 / tokens, "kept");
  expect_share(other, all, 0.1 * (tokens - 2) / tokens, "another token");
  expect_share(pieces, other, 500.0 / (tokens - 2), "another token is from the whole vocabulary");
  for (std::size_t i = 0; i < 100; ++i) {
    const bool special = i == 0 || i == 50 || i == 99;
    if (special) {
      EXPECT_EQ(at[i], 0);
    } else {
      expect_share(at[i], sequences, 15.0 / 97, "position");
    }
  }
}

TEST(Masking, whole_words_are_chosen_together_and_never_too_many) {
  // Words of 1 to 5 pieces.
  std::vector<std::int32_t> original = {cls}, word_of = {-1};
  for (int word = 0; word < 20; ++word) {
    for (int piece = 0; piece <= word % 5; ++piece) {
      original.push_back(piece == 0 ? first_word + word : first_piece + word);
      word_of.push_back(word);
    }
  }
  original.push_back(sep);
  word_of.push_back(-1);
  std::set<std::size_t> numbers;
  for (std::uint32_t slot = 0; slot < 2000; ++slot) {
    const Masked masked = run({0.15, 8, true}, original, slot);
    ASSERT_LE(masked.positions.size(), 8U);
    numbers.insert(masked.positions.size());
    std::set<std::int32_t> words;
    for (const std::int32_t position : masked.positions)
      words.insert(word_of[static_cast<std::size_t>(position)]);
    std::size_t pieces = 0;
    for (const std::int32_t word : words) pieces += static_cast<std::size_t>(word % 5 + 1);
    ASSERT_EQ(pieces, masked.positions.size()) << "a word was chosen in part";
  }
  EXPECT_TRUE(numbers.contains(8));
}

TEST(Masking, whole_words_differ_from_pieces_only_where_there_are_pieces) {
  EXPECT_EQ(run({0.15, 20, true}, sequence(100), 1).positions,
            run({0.15, 20, false}, sequence(100), 1).positions);
  // A piece behind [SEP] continues nothing.
  EXPECT_EQ(run({1, 20, true}, {cls, first_word, sep, first_piece, sep}, 0).positions,
            (std::vector<std::int32_t>{1, 3}));
}

}  // namespace
}  // namespace motley::io
