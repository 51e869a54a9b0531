#include "io/word_counts.h"

#include <algorithm>

#include "io/text_runs.h"

namespace motley::io {
namespace {

constexpr std::uint32_t max_word_characters = 100;  // the tokenizer takes longer ones for [UNK]

}  // namespace

WordCounts::WordCounts(bool lower_case, std::size_t max_words)
    : splitter_(lower_case), max_words_(max_words) {}

void WordCounts::add(std::string_view utf8) {
  for_each_run(
      utf8,
      [this](std::string_view run, bool plain) {
        for (const Word& word : splitter_.split(run, plain)) {
          if (word.characters <= max_word_characters) count(word.bytes);
        }
      },
      [this](char c) {
        count({&c, 1});
      },
      [](SpecialToken) {});
}

void WordCounts::count(std::string_view word) {
  const auto known = counts_.find(word);
  if (known != counts_.end()) {
    ++known->second;
    return;
  }
  if (counts_.size() == max_words_) forget_the_rarest();
  counts_.emplace(word, 1);
}

void WordCounts::forget_the_rarest() {
  while (counts_.size() > max_words_ / 2) {
    ++forgotten_up_to_;
    std::erase_if(counts_, [this](const auto& word) { return word.second <= forgotten_up_to_; });
  }
}

std::vector<std::pair<std::string, std::uint64_t>> WordCounts::sorted() const {
  std::vector<std::pair<std::string, std::uint64_t>> words(counts_.begin(), counts_.end());
  std::sort(words.begin(), words.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  return words;
}

}  // namespace motley::io
