// The tokens of a BERT model: vocab.txt, one token per line, the line's number (from 0) being the id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace motley::io {

class Vocabulary {
 public:
  // Lines may end with CR LF, and a byte order mark and empty lines at the end do not count. Error(input),
  // naming the file and the line: a file that is missing or empty, a line that is empty or not UTF-8, a token
  // that stands there twice (its id would be ambiguous), or one of [PAD] [UNK] [CLS] [SEP] [MASK] missing.
  static Vocabulary read(const std::string& path);

  // The same from memory; `where` names the origin in errors.
  Vocabulary(std::vector<std::string> tokens, const std::string& where);

  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  const std::string& token(std::int32_t id) const { return tokens_.at(static_cast<std::size_t>(id)); }
  const std::vector<std::string>& tokens() const { return tokens_; }
  // -1 when there is none.
  std::int32_t find(std::string_view token) const;

  // Whether the token is a piece that continues a word ("##ing").
  bool continues_word(std::int32_t id) const { return continues_[static_cast<std::size_t>(id)] != 0; }

  std::int32_t pad() const { return pad_; }
  std::int32_t unk() const { return unk_; }
  std::int32_t cls() const { return cls_; }
  std::int32_t sep() const { return sep_; }
  std::int32_t mask() const { return mask_; }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };

  std::vector<std::string> tokens_;
  std::vector<std::uint8_t> continues_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
  std::int32_t pad_ = 0, unk_ = 0, cls_ = 0, sep_ = 0, mask_ = 0;
};

// What tells two vocabularies apart: the XXH3 of the tokens, one per line, as 16 hexadecimal digits.
std::string vocabulary_fingerprint(const Vocabulary& vocabulary);

}  // namespace motley::io
