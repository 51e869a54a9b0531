#include "io/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "io/text_runs.h"

namespace motley::io {
namespace {

constexpr std::uint32_t max_word_characters = 100;             // longer words are [UNK]
constexpr std::size_t remembered_runs = std::size_t{1} << 15;  // 2 MiB, a power of two

}  // namespace

Tokenizer::Tokenizer(const Vocabulary& vocabulary, bool lower_case)
    : trie_(vocabulary),
      splitter_(lower_case),
      unk_(vocabulary.unk()),
      special_ids_{vocabulary.mask(), vocabulary.sep(), vocabulary.cls(), vocabulary.unk(), vocabulary.pad()},
      remembered_(remembered_runs) {
  for (std::size_t c = 0; c < punctuation_ids_.size(); ++c) {
    const char text = static_cast<char>(c);
    const std::int32_t id = vocabulary.find({&text, 1});
    punctuation_ids_[c] = id < 0 ? unk_ : id;
  }
}

void Tokenizer::encode(std::string_view utf8, std::vector<std::int32_t>& ids) {
  for_each_run(
      utf8, [&](std::string_view run, bool plain) { encode_run(run, plain, ids); },
      [&](char c) { ids.push_back(punctuation_ids_[static_cast<unsigned char>(c)]); },
      [&](SpecialToken token) { ids.push_back(special_ids_[token]); });
}

void Tokenizer::encode_run(std::string_view run, bool plain, std::vector<std::int32_t>& ids) {
  Remembered* place = nullptr;
  if (run.size() <= Remembered::max_bytes) {
    place = &remembered_[XXH3_64bits(run.data(), run.size()) & (remembered_.size() - 1)];
    if (place->bytes == run.size() && std::memcmp(place->run.data(), run.data(), run.size()) == 0) {
      ids.insert(ids.end(), place->id.data(), place->id.data() + place->ids);
      return;
    }
  }
  const std::size_t before = ids.size();
  const std::uint64_t invalid_before = splitter_.replaced_invalid();
  for (const Word& word : splitter_.split(run, plain)) encode_word(word, ids);
  // What is not UTF-8 must be counted each time.
  const bool whole = splitter_.replaced_invalid() == invalid_before;
  if (place != nullptr && whole) remember(*place, run, ids.data() + before, ids.size() - before);
}

void Tokenizer::encode_word(const Word& word, std::vector<std::int32_t>& ids) const {
  const std::size_t before = ids.size();
  std::string_view rest = word.bytes;
  if (word.characters > max_word_characters) {
    ids.push_back(unk_);
    return;
  }
  while (!rest.empty()) {
    const TokenTrie::Match match = trie_.longest(rest, ids.size() > before);
    if (match.id < 0) {  // one piece that is not there makes the whole word unknown
      ids.resize(before);
      ids.push_back(unk_);
      return;
    }
    ids.push_back(match.id);
    rest.remove_prefix(match.bytes);
  }
}

void Tokenizer::remember(Remembered& place, std::string_view run, const std::int32_t* ids,
                         std::size_t count) {
  if (count > Remembered::max_ids) return;
  place.bytes = static_cast<std::uint8_t>(run.size());
  place.ids = static_cast<std::uint8_t>(count);
  std::copy(run.begin(), run.end(), place.run.begin());
  std::copy(ids, ids + count, place.id.begin());
}

}  // namespace motley::io
