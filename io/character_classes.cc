#include "io/character_classes.h"

#include <unicode/uchar.h>

namespace motley::io {
namespace {

bool in_unicode_8(UChar32 c) {
  UVersionInfo age{};
  u_charAge(c, age);
  return age[0] > 0 && (age[0] < 8 || (age[0] == 8 && age[1] == 0));
}

// The blocks of ideographs that BERT's authors list. The reference begins the last of its extensions at
// U+2B920, and so leaves out 256 ideographs of extension E.
bool is_cjk(UChar32 c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_space(UChar32 c, std::uint32_t category) {
  return c == '\t' || c == '\n' || c == '\r' || (category & U_GC_Z_MASK) != 0;
}

CharacterClass classify(UChar32 c) {
  switch (c) {  // of another category in Unicode 8 than today
    case 0x166D:
      return class_punctuation;
    case 0x1734:
      return class_mark;
    case 0x1885:
    case 0x1886:
    case 0xA9BD:
      return class_letter;
    case 0x111C9:
      return class_punctuation;
    case 0xFFFD:
      return class_drop;
    default:
      break;
  }
  if (is_cjk(c)) return class_cjk;
  if (!in_unicode_8(c)) return class_letter;
  const std::uint32_t category = U_GET_GC_MASK(c);
  if (is_space(c, category)) return class_space;
  if ((category & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0) return class_drop;
  if ((category & U_GC_MN_MASK) != 0) return class_mark;
  // ASCII symbols such as $ and < are punctuation to BERT; others such as U+20AC are not.
  const bool ascii_symbol = c > 32 && c < 127 && (category & (U_GC_L_MASK | U_GC_ND_MASK)) == 0;
  return ascii_symbol || (category & U_GC_P_MASK) != 0 ? class_punctuation : class_letter;
}

}  // namespace

CharacterClasses::CharacterClasses() : classes_(0x110000) {
  for (UChar32 c = 0; c < 0x110000; ++c) classes_[static_cast<std::size_t>(c)] = classify(c);
}

const CharacterClasses& CharacterClasses::get() {
  static const CharacterClasses classes;
  return classes;
}

}  // namespace motley::io
