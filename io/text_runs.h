// The first cut of a text for the BERT tokenizer, at ASCII characters alone, so that most text needs no
// look at Unicode. Whitespace and punctuation of ASCII separate what lies on their sides completely: no step
// of the tokenizer looks across them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace motley::io {

enum ByteClass : std::uint8_t {
  byte_plain = 0,    // an ASCII letter or digit
  byte_special = 1,  // a byte of another character, or a control character, which is dropped
  byte_space = 2,
  byte_punctuation = 3
};

constexpr std::array<std::uint8_t, 256> make_byte_classes() {
  std::array<std::uint8_t, 256> classes{};
  for (std::size_t c = 0; c < 256; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      classes[c] = byte_space;
    } else if (c < 32 || c >= 127) {
      classes[c] = byte_special;
    } else {
      classes[c] = letter ? byte_plain : byte_punctuation;
    }
  }
  return classes;
}

inline constexpr std::array<std::uint8_t, 256> byte_classes = make_byte_classes();

inline std::uint8_t class_of_byte(char c) {
  return byte_classes[static_cast<unsigned char>(c)];
}

enum SpecialToken : std::uint8_t {
  special_mask,
  special_sep,
  special_cls,
  special_unk,
  special_pad,
  no_special
};

inline constexpr std::array<std::string_view, 5> special_tokens = {"[MASK]", "[SEP]", "[CLS]", "[UNK]",
                                                                   "[PAD]"};

// The special token that `text` begins with.
inline SpecialToken special_token_at(std::string_view text) {
  for (std::size_t i = 0; i < special_tokens.size(); ++i) {
    if (text.starts_with(special_tokens[i])) return static_cast<SpecialToken>(i);
  }
  return no_special;
}

// Calls, in the order of the text, run(bytes, plain) for what lies between, `plain` telling that it is ASCII
// letters and digits only; punctuation(c) for one character; special(token) for the special tokens, which
// stay whole wherever they stand.
template <class Run, class Punctuation, class Special>
void for_each_run(std::string_view text, const Run& run, const Punctuation& punctuation,
                  const Special& special) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    const std::uint8_t kind = class_of_byte(*at);
    if (kind == byte_space) {
      ++at;
    } else if (kind == byte_punctuation) {
      const SpecialToken token =
          *at == '[' ? special_token_at({at, static_cast<std::size_t>(end - at)}) : no_special;
      if (token == no_special) {
        punctuation(*at++);
      } else {
        special(token);
        at += special_tokens[token].size();
      }
    } else {
      const char* const first = at;
      std::uint8_t seen = 0;
      for (; at != end && class_of_byte(*at) <= byte_special; ++at) seen |= class_of_byte(*at);
      run(std::string_view(first, static_cast<std::size_t>(at - first)), seen == byte_plain);
    }
  }
}

}  // namespace motley::io
