// What the characters of a text are to the BERT tokenizer.
//
// The reference, the Rust library `tokenizers` 0.23, knows the categories of Unicode 8 (marks, punctuation,
// format characters), the decompositions and combining classes of Unicode 9 and the lower case of Unicode 17.
// What has been assigned since Unicode 8 is plain letters to it. So that a text has the same tokens whatever
// ICU this program is linked with, the categories here are those of ICU for the characters that Unicode 8
// has, with the six that have changed since put back (character_classes.cc).
#pragma once

#include <cstdint>
#include <vector>

namespace motley::io {

enum CharacterClass : std::uint8_t {
  class_letter = 0,  // a part of a word, like everything that is nothing else
  class_drop = 1,    // control, format and private-use characters, U+FFFD
  class_space = 2,
  class_cjk = 3,          // an ideograph, which is a word of its own
  class_punctuation = 4,  // also a word of its own
  class_mark = 5          // a nonspacing mark, which is dropped when accents are stripped
};

class CharacterClasses {
 public:
  // Made once per process, in some milliseconds.
  static const CharacterClasses& get();

  CharacterClass of(std::int32_t c) const {
    return static_cast<CharacterClass>(classes_[static_cast<std::size_t>(c)]);
  }

 private:
  CharacterClasses();
  std::vector<std::uint8_t> classes_;
};

}  // namespace motley::io
