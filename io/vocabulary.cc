#include "io/vocabulary.h"

#include <unicode/utf8.h>
#include <xxhash.h>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"

namespace motley::io {
namespace {

bool is_utf8(std::string_view text) {
  const auto length = static_cast<std::int32_t>(text.size());
  for (std::int32_t at = 0; at < length;) {
    UChar32 c = 0;
    U8_NEXT(text.data(), at, length, c);
    if (c < 0) return false;
  }
  return true;
}

std::vector<std::string> split_lines(std::string_view content) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (content.starts_with(byte_order_mark)) content.remove_prefix(byte_order_mark.size());
  std::vector<std::string> lines;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    content.remove_prefix(std::min(end + 1, content.size()));
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace

Vocabulary Vocabulary::read(const std::string& path) {
  return {split_lines(read_file(path, ExitCode::input)), path};
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, const std::string& where)
    : tokens_(std::move(tokens)) {
  if (tokens_.empty()) fail(ExitCode::input, "{}: holds no tokens; expected one per line", where);
  continues_.reserve(tokens_.size());
  ids_.reserve(tokens_.size());
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& token = tokens_[i];
    if (token.empty()) fail(ExitCode::input, "{}, line {}: is empty; expected a token", where, i + 1);
    if (token.size() > (1 << 20) || !is_utf8(token)) {
      fail(ExitCode::input, "{}, line {}: is not UTF-8 text; expected a token", where, i + 1);
    }
    const auto [known, fresh] = ids_.emplace(token, static_cast<std::int32_t>(i));
    if (!fresh) {
      fail(ExitCode::input, "{}, line {}: \"{}\" is already in line {}; expected each token once", where,
           i + 1, token, known->second + 1);
    }
    continues_.push_back(token.starts_with("##") ? 1 : 0);
  }
  const auto require = [&](const char* token) {
    const std::int32_t id = find(token);
    if (id < 0) {
      fail(ExitCode::input,
           "{}: has no token {}; expected a BERT vocabulary with [PAD], [UNK], [CLS], [SEP] and [MASK]",
           where, token);
    }
    return id;
  };
  pad_ = require("[PAD]");
  unk_ = require("[UNK]");
  cls_ = require("[CLS]");
  sep_ = require("[SEP]");
  mask_ = require("[MASK]");
}

std::int32_t Vocabulary::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::string vocabulary_fingerprint(const Vocabulary& vocabulary) {
  std::string all;
  for (const std::string& token : vocabulary.tokens()) all += token + "\n";
  return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
}

}  // namespace motley::io
