// How often each word of a text occurs, as BERT's basic tokenizer cuts it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/word_splitter.h"

namespace motley::io {

class WordCounts {
 public:
  static constexpr std::size_t default_max_words = 2'000'000;  // some 200 MB

  // When there are more than `max_words` different words, the rarest are forgotten until half of that are
  // left: memory is bounded, and a word that comes back is counted from 0 again.
  explicit WordCounts(bool lower_case, std::size_t max_words = default_max_words);

  void add(std::string_view utf8);

  // By falling count, words of the same count by their bytes: the order depends on the text alone.
  std::vector<std::pair<std::string, std::uint64_t>> sorted() const;

  std::size_t distinct() const { return counts_.size(); }
  // Words that occurred no more often than this may have been forgotten; 0: none was.
  std::uint64_t forgotten_up_to() const { return forgotten_up_to_; }
  std::uint64_t replaced_invalid() const { return splitter_.replaced_invalid(); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  void count(std::string_view word);
  void forget_the_rarest();

  WordSplitter splitter_;
  std::size_t max_words_;
  std::unordered_map<std::string, std::uint64_t, Hash, std::equal_to<>> counts_;
  std::uint64_t forgotten_up_to_ = 0;
};

}  // namespace motley::io
