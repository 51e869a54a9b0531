// Learns a WordPiece vocabulary from counted words as Hugging Face's WordPieceTrainer does: every word begins
// as its characters, those behind the first with "##" before them; then, again and again, the pair of
// neighbours that is most frequent over all words becomes a token (byte-pair encoding: Sennrich et al.,
// "Neural machine translation of rare words with subword units", ACL 2016, algorithm 1). Pairs of the same
// frequency are taken in the order in which their parts became tokens, so that the same words give the same
// vocabulary.
#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace motley::io {

struct WordpieceOptions {
  std::size_t size = 30522;
  std::uint64_t min_frequency = 2;    // of a pair, to become a token
  std::size_t alphabet_limit = 1000;  // the most frequent characters; words with others are left out
};

class WordpieceTrainer {
 public:
  // The tokens begin with [PAD] [UNK] [CLS] [SEP] [MASK], then come the characters in the order of Unicode,
  // as words and then as pieces. Error(usage) when `size` has no room for these.
  WordpieceTrainer(const std::vector<std::pair<std::string, std::uint64_t>>& words,
                   const WordpieceOptions& options);

  // Makes at most `merges` further tokens. False when the vocabulary is full or no pair is frequent enough.
  bool step(std::size_t merges);

  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  using Id = std::int32_t;
  using Pair = std::pair<Id, Id>;
  struct Hash {
    std::size_t operator()(const Pair& pair) const {
      const auto both = (static_cast<std::uint64_t>(static_cast<std::uint32_t>(pair.first)) << 32) |
                        static_cast<std::uint32_t>(pair.second);
      return static_cast<std::size_t>((both * 0x9E3779B97F4A7C15u) >> 16);
    }
  };
  struct Occurrences {
    std::uint64_t count = 0;
    std::vector<std::uint32_t> words;  // those that have, or had, the pair; a word may stand there twice
  };
  struct Candidate {
    std::uint64_t count;
    Pair pair;
    bool operator<(const Candidate& other) const {  // the queue's top is the largest
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };
  struct Word {
    std::size_t first = 0;  // in ids_
    std::uint32_t length = 0;
    std::uint64_t count = 0;
  };

  Id make_token(const std::string& text);
  void count_pairs();
  void merge(const Pair& pair, Id merged);
  void merge_in(std::uint32_t word, const Pair& pair, Id merged);
  void add_pair(const Pair& pair, std::uint32_t word);

  WordpieceOptions options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, Id> ids_by_token_;
  std::vector<Id> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, Occurrences, Hash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> grown_;  // pairs whose count a merge has raised
};

}  // namespace motley::io
