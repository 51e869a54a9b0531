#include "io/word_splitter.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/utf16.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>

#include "core/error.h"

namespace motley::io {
namespace {

// The newest Unicode whose decompositions and combining classes the reference knows.
constexpr std::uint8_t newest_normalized = 9;

bool known_to_normalization(UChar32 c) {
  UVersionInfo age{};
  u_charAge(c, age);
  return age[0] > 0 && age[0] <= newest_normalized;
}

}  // namespace

WordSplitter::WordSplitter(bool lower_case)
    : lower_case_(lower_case), classes_(CharacterClasses::get()), decomposition_(nullptr) {
  UErrorCode status = U_ZERO_ERROR;
  decomposition_ = unorm2_getNFDInstance(&status);
  if (U_FAILURE(status)) fail(ExitCode::internal, "ICU has no normalisation: {}", u_errorName(status));
}

const std::vector<Word>& WordSplitter::split(std::string_view run, bool plain) {
  words_.clear();
  if (plain) {
    if (!lower_case_) {
      words_.push_back({run, static_cast<std::uint32_t>(run.size())});
      return words_;
    }
    bytes_.assign(run);
    for (char& c : bytes_) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    }
    words_.push_back({bytes_, static_cast<std::uint32_t>(bytes_.size())});
    return words_;
  }
  characters_.clear();
  clean(run);
  cut();
  return words_;
}

void WordSplitter::clean(std::string_view run) {
  const auto length = static_cast<std::int64_t>(run.size());
  for (std::int64_t at = 0; at < length;) {
    UChar32 c = 0;
    U8_NEXT(run.data(), at, length, c);
    if (c < 0) {
      ++replaced_invalid_;
      continue;
    }
    switch (classes_.of(c)) {
      case class_drop:
        break;
      case class_space:
        append(' ');
        break;
      case class_cjk:
        append(' ');
        append(c);
        append(' ');
        break;
      default:
        append(c);
    }
  }
}

void WordSplitter::append(UChar32 c) {
  if (lower_case_ && c >= 0x80) {
    append_decomposed(c);
  } else {
    characters_.push_back({c, 0});
  }
}

void WordSplitter::append_decomposed(UChar32 c) {
  // The longest canonical decomposition has 4 characters.
  std::array<UChar, 16> buffer;
  UErrorCode status = U_ZERO_ERROR;
  const std::int32_t length = known_to_normalization(c)
                                  ? unorm2_getDecomposition(decomposition_, c, buffer.data(),
                                                            static_cast<std::int32_t>(buffer.size()), &status)
                                  : -1;
  MOTLEY_CHECK(U_SUCCESS(status));
  if (length < 0) {
    append_in_order(c);
    return;
  }
  for (std::int32_t at = 0; at < length;) {
    UChar32 part = 0;
    U16_NEXT(buffer.data(), at, length, part);
    append_in_order(part);
  }
}

// The canonical order: marks by their combining class, those of one class as they came.
void WordSplitter::append_in_order(UChar32 c) {
  std::uint8_t combining_class = u_getCombiningClass(c);
  if (combining_class != 0 && !known_to_normalization(c)) combining_class = 0;
  characters_.push_back({c, combining_class});
  if (combining_class == 0) return;
  for (std::size_t i = characters_.size() - 1; i > 0 && characters_[i - 1].combining_class > combining_class;
       --i) {
    std::swap(characters_[i], characters_[i - 1]);
  }
}

// Strips, lower-cases and cuts what is in characters_.
void WordSplitter::cut() {
  // Lower case can take more bytes than upper case; words_ point into bytes_, which must therefore not move.
  bytes_.clear();
  bytes_.reserve(characters_.size() * U8_MAX_LENGTH);
  std::size_t first = 0;
  std::uint32_t count = 0;
  const auto end_word = [&] {
    if (count > 0) words_.push_back({std::string_view(bytes_).substr(first), count});
    first = bytes_.size();
    count = 0;
  };
  for (const Character& character : characters_) {
    UChar32 c = character.c;
    if (lower_case_) {
      if (classes_.of(c) == class_mark) continue;
      c = u_tolower(c);
    }
    const CharacterClass kind = classes_.of(c);
    if (kind == class_space) {
      end_word();
      continue;
    }
    if (kind == class_punctuation) end_word();
    char encoded[U8_MAX_LENGTH];
    std::int32_t length = 0;
    U8_APPEND_UNSAFE(encoded, length, c);
    bytes_.append(encoded, static_cast<std::size_t>(length));
    ++count;
    if (kind == class_punctuation) end_word();
  }
  end_word();
}

}  // namespace motley::io
