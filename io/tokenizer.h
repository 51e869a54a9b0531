// The BERT tokenizer: basic tokenizer and WordPiece. Its ids are those of Hugging Face's BertTokenizer, which
// is the Rust library `tokenizers`, for every text: see docs/tokenizer.md for how that was compared, and for
// what their older tokenizer in Python does differently.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "io/token_trie.h"
#include "io/vocabulary.h"
#include "io/word_splitter.h"

namespace motley::io {

class Tokenizer {
 public:
  // `lower_case`: for uncased models, which also strip accents. The vocabulary is copied from, not kept.
  Tokenizer(const Vocabulary& vocabulary, bool lower_case);

  // Appends the ids of the text, without [CLS] and [SEP] around them. Special tokens that stand in the text,
  // such as "[MASK]", become what they name. Bytes that are not UTF-8 count and are otherwise ignored: each
  // becomes U+FFFD, which BERT drops. Not for two threads at once.
  void encode(std::string_view utf8, std::vector<std::int32_t>& ids);

  // How many pieces of the texts so far were not UTF-8.
  std::uint64_t replaced_invalid() const { return splitter_.replaced_invalid(); }

 private:
  // What a run of text became. One cache line; runs and results that do not fit are not remembered.
  struct alignas(64) Remembered {
    static constexpr std::size_t max_bytes = 30, max_ids = 8;
    std::uint8_t bytes = 0, ids = 0;
    std::array<char, max_bytes> run{};
    std::array<std::int32_t, max_ids> id{};
  };
  static_assert(sizeof(Remembered) == 64);

  void encode_run(std::string_view run, bool plain, std::vector<std::int32_t>& ids);
  void encode_word(const Word& word, std::vector<std::int32_t>& ids) const;
  void remember(Remembered& place, std::string_view run, const std::int32_t* ids, std::size_t count);

  TokenTrie trie_;
  WordSplitter splitter_;
  std::int32_t unk_;
  std::array<std::int32_t, 5> special_ids_{};        // by SpecialToken
  std::array<std::int32_t, 128> punctuation_ids_{};  // by character
  std::vector<Remembered> remembered_;
};

}  // namespace motley::io
