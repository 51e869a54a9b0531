// The basic tokenizer of BERT for one run of text (io/text_runs.h): cleans it, sets ideographs apart, strips
// accents and lower-cases when the model is uncased, and cuts it into words and punctuation. Unicode is
// ICU's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/character_classes.h"

struct UNormalizer2;  // ICU's

namespace motley::io {

// One word, in UTF-8.
struct Word {
  std::string_view bytes;
  std::uint32_t characters = 0;
};

class WordSplitter {
 public:
  // `lower_case`: for uncased models, which also strip accents.
  explicit WordSplitter(bool lower_case);

  bool lower_case() const { return lower_case_; }

  // The words of a run; they point into the run or into this object, and are gone with the next call. Bytes
  // that are not UTF-8 are dropped as U+FFFD would be.
  const std::vector<Word>& split(std::string_view run, bool plain);

  // How often a longest piece of a character, or a byte that begins none, was replaced: what Python's decoder
  // counts with errors="replace".
  std::uint64_t replaced_invalid() const { return replaced_invalid_; }

 private:
  struct Character {
    std::int32_t c;
    std::uint8_t combining_class;
  };
  void clean(std::string_view run);
  void append(std::int32_t c);
  void append_decomposed(std::int32_t c);
  void append_in_order(std::int32_t c);
  void cut();

  bool lower_case_;
  const CharacterClasses& classes_;
  const UNormalizer2* decomposition_;
  std::uint64_t replaced_invalid_ = 0;
  std::vector<Character> characters_;
  std::string bytes_;
  std::vector<Word> words_;
};

}  // namespace motley::io
