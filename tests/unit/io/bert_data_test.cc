// Sentence pairs, and the shards that they end up in.
#include "io/bert_data.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "io/bert_pairs.h"
#include "io/bert_shard.h"
#include "support/paths.h"
#include "unit/io/test_files.h"

namespace motley::io {
namespace {

// A piece whose token ids say where they are from: document * 10000 + place in the document.
EncodedPiece numbered_piece(int documents, int sentences, int length) {
  EncodedPiece piece;
  for (int d = 0; d < documents; ++d) {
    const std::size_t first = piece.sentences.size();
    std::int32_t place = 0;
    for (int s = 0; s < sentences; ++s) {
      const std::size_t begin = piece.ids.size();
      for (int i = 0; i < length + (s + d) % 5; ++i) piece.ids.push_back(d * 10000 + place++);
      piece.sentences.push_back({begin, piece.ids.size()});
    }
    piece.documents.push_back({{first, piece.sentences.size()}, static_cast<std::uint64_t>(d)});
  }
  return piece;
}

struct Pair {
  std::vector<std::int32_t> a, b;
  bool random_next;
  std::size_t document, document_of_b;
};

std::vector<Pair> pairs_of(const EncodedPiece& piece, const PairOptions& options, std::uint64_t seed = 1) {
  std::vector<Pair> pairs;
  PairMaker maker(piece, options);
  maker.make(RandomKey(seed, Purpose::sentence_pairs, 0, 0), [&](const SentencePair& pair) {
    pairs.push_back({{pair.a.begin(), pair.a.end()},
                     {pair.b.begin(), pair.b.end()},
                     pair.random_next,
                     pair.document,
                     pair.document_of_b});
  });
  return pairs;
}

bool consecutive(const std::vector<std::int32_t>& ids) {
  for (std::size_t i = 1; i < ids.size(); ++i) {
    if (ids[i] != ids[i - 1] + 1) return false;
  }
  return !ids.empty();
}

TEST(BertPairs, are_runs_of_their_documents_and_never_of_the_same_one_by_chance) {
  const EncodedPiece piece = numbered_piece(10, 200, 6);
  std::size_t random = 0, next = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    for (const Pair& pair : pairs_of(piece, {61, 0.1}, seed)) {
      ASSERT_TRUE(consecutive(pair.a) && consecutive(pair.b));
      ASSERT_LE(pair.a.size() + pair.b.size(), 61U);
      ASSERT_EQ(static_cast<std::size_t>(pair.a[0]) / 10000, pair.document);
      ASSERT_EQ(static_cast<std::size_t>(pair.b[0]) / 10000, pair.document_of_b);
      ASSERT_EQ(pair.random_next, pair.document != pair.document_of_b);
      if (!pair.random_next) {
        ASSERT_GT(pair.b.front(), pair.a.back());
      }
      ++(pair.random_next ? random : next);
    }
  }
  // Half, and a little more for the last sentence of a document, which has nothing behind it.
  const auto all = static_cast<double>(random + next);
  ASSERT_GT(all, 10000);
  EXPECT_NEAR(static_cast<double>(random) / all, 0.5, 0.02 + 5 * 0.5 / std::sqrt(all));
  EXPECT_GT(static_cast<double>(next) / all, 0.5 - 0.08);
}

// With pairs that are never too long no token is lost: every sentence is A or B of a pair of its document.
TEST(BertPairs, use_every_sentence) {
  const EncodedPiece piece = numbered_piece(5, 50, 3);
  std::vector<std::int32_t> used;
  for (const Pair& pair : pairs_of(piece, {100000, 0})) {
    used.insert(used.end(), pair.a.begin(), pair.a.end());
    if (!pair.random_next) used.insert(used.end(), pair.b.begin(), pair.b.end());
  }
  EXPECT_EQ(used, piece.ids);
}

TEST(BertPairs, the_other_document_is_any_other_alike) {
  const EncodedPiece piece = numbered_piece(5, 1, 4);
  std::map<std::pair<std::size_t, std::size_t>, int> seen;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    for (const Pair& pair : pairs_of(piece, {61, 0.1}, seed)) {
      ASSERT_TRUE(pair.random_next);  // a document of one sentence has no next one
      ++seen[{pair.document, pair.document_of_b}];
    }
  }
  EXPECT_EQ(seen.size(), 20U);
  for (const auto& [pair, count] : seen)
    EXPECT_NEAR(count, 1000, 5 * std::sqrt(750)) << pair.first << pair.second;
}

TEST(BertPairs, parts_of_a_document_that_was_cut_are_no_others_unless_there_is_nothing_else) {
  EncodedPiece piece = numbered_piece(4, 20, 4);
  piece.documents[1].number = piece.documents[2].number = 1;
  for (const Pair& pair : pairs_of(piece, {40, 0.1})) {
    if (pair.random_next && pair.document == 1) {
      ASSERT_NE(pair.document_of_b, 2U);
    }
    if (pair.random_next && pair.document == 2) {
      ASSERT_NE(pair.document_of_b, 1U);
    }
  }
  for (auto& document : piece.documents) document.number = 7;
  std::size_t random = 0;
  for (const Pair& pair : pairs_of(piece, {40, 0.1})) {
    if (!pair.random_next) continue;
    ++random;
    ASSERT_NE(pair.document, pair.document_of_b);
  }
  EXPECT_GT(random, 0U);
}

TEST(BertPairs, some_documents_have_short_sequences) {
  const EncodedPiece piece = numbered_piece(3000, 30, 8);
  std::map<std::size_t, std::size_t> longest;
  for (const Pair& pair : pairs_of(piece, {125, 0.1})) {
    longest[pair.document] = std::max(longest[pair.document], pair.a.size() + pair.b.size());
  }
  std::size_t shorter = 0;
  for (const auto& [document, length] : longest) shorter += length < 100;
  // Short ones have 2 to 125 tokens, of which about 4 in 5 stay below 100.
  EXPECT_NEAR(static_cast<double>(shorter), 3000 * 0.1 * 0.78, 60);
}

TEST(BertPairs, sentences_that_are_too_long_lose_tokens_at_both_ends) {
  const EncodedPiece piece = numbered_piece(2, 1, 400);
  bool front = false, back = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const Pair& pair : pairs_of(piece, {61, 0}, seed)) {
      ASSERT_EQ(pair.a.size() + pair.b.size(), 61U);
      front |= pair.a.front() % 10000 > 0;
      back |= static_cast<std::size_t>(pair.a.back() % 10000) + 1 < piece.sentences[pair.document].size();
    }
  }
  EXPECT_TRUE(front && back);
}

// --- Shards -----------------------------------------------------------------------------------------------

template <class T>
std::vector<T> read_column(const std::string& path, const char* name, hid_t type) {
  const Hdf5Handle file = open_hdf5(path);
  const Hdf5Handle set(MOTLEY_HDF5(path, ExitCode::internal, H5Dopen2(file.get(), name, H5P_DEFAULT)),
                       H5Dclose);
  const Hdf5Handle space(H5Dget_space(set.get()), H5Sclose);
  std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
  MOTLEY_HDF5(path, ExitCode::internal,
              H5Dread(set.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()));
  return values;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Shard : public ::testing::Test {
 protected:
  test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "shard.h5").string();
};

TEST_F(Shard, holds_its_rows_padded_with_zeros) {
  for (const std::uint64_t rows : {1U, 1023U, 1024U, 1025U, 3000U}) {
    std::filesystem::remove(path);
    BertShard shard({16, 3, 4, {}});
    for (std::uint64_t i = 0; i < rows; ++i) {
      const auto n = static_cast<std::size_t>(5 + i % 12);
      std::vector<std::int32_t> ids(n);
      for (std::size_t j = 0; j < n; ++j) ids[j] = static_cast<std::int32_t>(i * 100 + j + 1);
      const std::vector<std::int32_t> positions = {1, static_cast<std::int32_t>(n) - 2};
      const std::vector<std::int32_t> labels = {7, static_cast<std::int32_t>(i) + 8};
      shard.add(ids, 3, positions, labels, i % 3 == 0);
    }
    EXPECT_EQ(shard.rows(), rows);
    shard.write(path);
    const auto ids = read_column<std::int32_t>(path, "input_ids", H5T_NATIVE_INT32);
    const auto mask = read_column<std::int8_t>(path, "input_mask", H5T_NATIVE_INT8);
    const auto segments = read_column<std::int8_t>(path, "segment_ids", H5T_NATIVE_INT8);
    const auto positions = read_column<std::int32_t>(path, "masked_lm_positions", H5T_NATIVE_INT32);
    const auto labels = read_column<std::int32_t>(path, "masked_lm_ids", H5T_NATIVE_INT32);
    const auto next = read_column<std::int8_t>(path, "next_sentence_labels", H5T_NATIVE_INT8);
    ASSERT_EQ(ids.size(), rows * 16);
    ASSERT_EQ(positions.size(), rows * 3);
    ASSERT_EQ(next.size(), rows);
    for (std::uint64_t i = 0; i < rows; ++i) {
      const std::uint64_t n = 5 + i % 12;
      for (std::uint64_t j = 0; j < 16; ++j) {
        ASSERT_EQ(ids[i * 16 + j], j < n ? static_cast<std::int32_t>(i * 100 + j + 1) : 0);
        ASSERT_EQ(mask[i * 16 + j], j < n ? 1 : 0);
        ASSERT_EQ(segments[i * 16 + j], j >= 3 && j < n ? 1 : 0);
      }
      ASSERT_EQ(positions[i * 3 + 1], static_cast<std::int32_t>(n) - 2);
      ASSERT_EQ(positions[i * 3 + 2], 0);
      ASSERT_EQ(labels[i * 3 + 1], static_cast<std::int32_t>(i) + 8);
      ASSERT_EQ(next[i], i % 3 == 0 ? 1 : 0);
    }
  }
}

TEST_F(Shard, is_stored_in_chunks_of_whole_rows_of_the_documented_types) {
  BertShard shard({32, 5, 6, {}});
  shard.add(std::vector<std::int32_t>{2, 9, 3, 9, 3}, 3, std::vector<std::int32_t>{1},
            std::vector<std::int32_t>{8}, false);
  shard.write(path);
  const Hdf5Handle file = open_hdf5(path);
  const std::map<std::string, std::pair<int, hsize_t>> expected = {
      {"input_ids", {4, 32}},          {"input_mask", {1, 32}},   {"segment_ids", {1, 32}},
      {"masked_lm_positions", {4, 5}}, {"masked_lm_ids", {4, 5}}, {"next_sentence_labels", {1, 0}}};
  EXPECT_EQ(link_names(file.get()).size(), expected.size());
  for (const auto& [name, form] : expected) {
    const Hdf5Handle set(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose);
    ASSERT_TRUE(set.valid()) << name;
    const Hdf5Handle type(H5Dget_type(set.get()), H5Tclose);
    EXPECT_EQ(H5Tget_size(type.get()), static_cast<std::size_t>(form.first));
    EXPECT_EQ(H5Tget_sign(type.get()), H5T_SGN_2);
    const Hdf5Handle creation(H5Dget_create_plist(set.get()), H5Pclose);
    hsize_t chunk[2] = {};
    const int dimensions = H5Pget_chunk(creation.get(), 2, chunk);
    EXPECT_EQ(dimensions, form.second > 0 ? 2 : 1);
    EXPECT_EQ(chunk[0], BertShard::chunk_rows);
    EXPECT_EQ(chunk[1], form.second);
    EXPECT_GE(H5Pget_filter_by_id2(creation.get(), H5Z_FILTER_DEFLATE, nullptr, nullptr, nullptr, 0, nullptr,
                                   nullptr),
              0);
  }
}

TEST_F(Shard, without_predictions_has_no_masks) {
  BertShard shard({32, 0, 0, {}});
  shard.add(std::vector<std::int32_t>{2, 9, 3, 9, 3}, 3, {}, {}, true);
  shard.write(path);
  EXPECT_EQ(link_names(open_hdf5(path).get()),
            (std::vector<std::string>{"input_ids", "input_mask", "next_sentence_labels", "segment_ids"}));
}

// No file may grow beyond `bytes` while this lives: as on a disk that is full.
class TightDisk {
 public:
  explicit TightDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit tight{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &tight);
  }
  ~TightDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  TightDisk(const TightDisk&) = delete;
  TightDisk& operator=(const TightDisk&) = delete;

 private:
  rlimit before_{};
};

TEST_F(Shard, that_cannot_be_written_is_said_and_leaves_nothing) {
  BertShard shard({32, 0, 0, {}});
  shard.add(std::vector<std::int32_t>{2, 9, 3, 9, 3}, 3, {}, {}, true);
  const std::string nowhere = (directory.path() / "none" / "shard.h5").string();
  test::expect_error_with(ExitCode::input, {nowhere, "No such file"}, [&] { shard.write(nowhere); });
  {
    const TightDisk tight(5000);
    test::expect_error_with(ExitCode::input, {path, "File too large"}, [&] { shard.write(path); });
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  shard.write(path);
  const std::string bytes = bytes_of(path);
  test::expect_error_with(ExitCode::input, {path, "File exists"}, [&] { shard.write(path); });
  EXPECT_EQ(bytes_of(path), bytes) << "a file that was there is left alone";
}

// --- From text to a shard ---------------------------------------------------------------------------------

class BertData : public Shard {
 protected:
  static Vocabulary vocabulary() {
    std::vector<std::string> tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."};
    for (char c = 'a'; c <= 'z'; ++c) {
      tokens.emplace_back(1, c);
      tokens.push_back(fmt::format("##{}", c));
    }
    return {tokens, "the test"};
  }
  static Piece piece(const std::vector<std::string>& documents) {
    Piece result;
    for (const std::string& document : documents) {
      const std::size_t first = result.text.size();
      result.text += document;
      result.documents.push_back({first, result.text.size(), result.documents.size()});
    }
    result.first_place = "corpus.txt, line 1";
    return result;
  }
  const Vocabulary words = vocabulary();
  const Piece two = piece({"ab cd.\nef gh.\nij\nkl mn\n", "op. qr.\nst uv\nwx yz\n"});
};

TEST_F(BertData, the_same_piece_gives_the_same_bytes_at_another_time) {
  BertDataOptions options;
  options.dupe_factor = 7;
  BertDataMaker maker(words, options);
  const auto make = [&](BertDataMaker& by, const Piece& from) {
    std::filesystem::remove(path);
    by.make_shard(from, path);
    return bytes_of(path);
  };
  const std::string first = make(maker, two);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // a second that HDF5 might have written down
  BertDataMaker again(words, options);
  EXPECT_EQ(make(again, two), first);
  make(maker, piece({"zz\n", "yy\n"}));
  EXPECT_EQ(make(maker, two), first) << "what was made before must not matter";
  options.seed = 2;
  BertDataMaker other(words, options);
  EXPECT_NE(make(other, two), first);
}

TEST_F(BertData, masked_tokens_put_back_give_the_text) {
  BertDataOptions options;
  options.dupe_factor = 50;
  options.max_sequence = 32;
  options.masking.max_predictions = 5;
  const BertDataCounts counts = BertDataMaker(words, options).make_shard(two, path);
  EXPECT_EQ(counts.documents, 2U);
  EXPECT_EQ(counts.sentences, 7U);
  EXPECT_EQ(counts.tokens, 30U);
  auto ids = read_column<std::int32_t>(path, "input_ids", H5T_NATIVE_INT32);
  const auto positions = read_column<std::int32_t>(path, "masked_lm_positions", H5T_NATIVE_INT32);
  const auto labels = read_column<std::int32_t>(path, "masked_lm_ids", H5T_NATIVE_INT32);
  ASSERT_EQ(ids.size(), counts.sequences * 32);
  std::vector<std::int32_t> text;
  Tokenizer tokenizer(words, true);
  tokenizer.encode(two.text, text);
  for (std::uint64_t row = 0; row < counts.sequences; ++row) {
    for (std::uint64_t i = 0; i < 5 && positions[row * 5 + i] > 0; ++i) {
      ids[row * 32 + static_cast<std::uint64_t>(positions[row * 5 + i])] = labels[row * 5 + i];
    }
    // What lies between [CLS], [SEP] and [SEP] are runs of the text.
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(row * 32);
    const auto middle = std::find(begin, begin + 32, words.sep());
    const auto end = std::find(middle + 1, begin + 32, words.sep());
    ASSERT_EQ(*begin, words.cls());
    ASSERT_NE(end, begin + 32);
    EXPECT_NE(std::search(text.begin(), text.end(), begin + 1, middle), text.end());
    EXPECT_NE(std::search(text.begin(), text.end(), middle + 1, end), text.end());
    EXPECT_TRUE(middle > begin + 1 && end > middle + 1);
  }
}

TEST_F(BertData, running_text_is_cut_into_sentences_when_asked) {
  BertDataOptions options;
  options.split_sentences = true;
  const Piece text = piece({"Ab cd. Ef gh.\n", "Ox. Qr.\nSt uv\n"});
  EXPECT_EQ(BertDataMaker(words, options).make_shard(text, path).sentences, 5U);
}

TEST_F(BertData, documents_without_a_known_character_do_not_count) {
  BertDataMaker maker(words, {});
  EXPECT_EQ(maker.make_shard(piece({"a\n", "\u200b\n", "\x01\nb\n"}), path).documents, 2U);
  test::expect_error(
      ExitCode::input,
      "corpus.txt, line 1: of the 2 documents that begin there, only one has any characters that BERT "
      "knows; sentence pairs need two",
      [&] {
        maker.make_shard(piece({"a\n", "\u200b\n"}), path);
      });
}

TEST_F(BertData, bytes_that_are_not_utf8_are_counted) {
  EXPECT_EQ(BertDataMaker(words, {}).make_shard(piece({"a\xff\n", "b\xc3 c\n"}), path).replaced_invalid, 2U);
}

}  // namespace
}  // namespace motley::io
