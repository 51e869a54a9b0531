#include "io/wordpiece_trainer.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "core/error.h"

namespace motley::io {
namespace {

std::vector<std::string_view> characters_of(std::string_view word) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t first = at;
    U8_FWD_1(word.data(), at, word.size());
    characters.push_back(word.substr(first, at - first));
  }
  return characters;
}

// UTF-8 sorts as code points do.
std::set<std::string_view> alphabet_of(const std::vector<std::pair<std::string, std::uint64_t>>& words,
                                       std::size_t limit) {
  std::unordered_map<std::string_view, std::uint64_t> counts;
  for (const auto& [word, count] : words) {
    for (const std::string_view character : characters_of(word)) counts[character] += count;
  }
  std::vector<std::pair<std::string_view, std::uint64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  if (sorted.size() > limit) sorted.resize(limit);
  std::set<std::string_view> alphabet;
  for (const auto& [character, count] : sorted) alphabet.insert(character);
  return alphabet;
}

std::string piece(std::string_view text) {
  return "##" + std::string(text);
}

}  // namespace

WordpieceTrainer::WordpieceTrainer(const std::vector<std::pair<std::string, std::uint64_t>>& words,
                                   const WordpieceOptions& options)
    : options_(options) {
  const std::set<std::string_view> alphabet = alphabet_of(words, options_.alphabet_limit);
  std::vector<std::vector<std::string_view>> spelled;
  std::vector<std::uint64_t> counts;
  std::set<std::string_view> inside;  // characters that stand behind another
  for (const auto& [word, count] : words) {
    std::vector<std::string_view> characters = characters_of(word);
    const auto known = [&](std::string_view character) { return alphabet.contains(character); };
    if (!std::all_of(characters.begin(), characters.end(), known)) continue;
    inside.insert(characters.begin() + 1, characters.end());
    spelled.push_back(std::move(characters));
    counts.push_back(count);
  }
  for (const char* token : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}) make_token(token);
  const std::size_t least = tokens_.size() + alphabet.size() + inside.size();
  if (options_.size < least) {
    fail(
        ExitCode::usage,
        "--size is {}; the special tokens and the {} characters of the text, as words and as pieces, need {}",
        options_.size, alphabet.size(), least);
  }
  for (const std::string_view character : alphabet) make_token(std::string(character));
  for (const std::string_view character : inside) make_token(piece(character));
  for (std::size_t i = 0; i < spelled.size(); ++i) {
    words_.push_back({ids_.size(), static_cast<std::uint32_t>(spelled[i].size()), counts[i]});
    for (std::size_t j = 0; j < spelled[i].size(); ++j) {
      ids_.push_back(ids_by_token_.at(j == 0 ? std::string(spelled[i][j]) : piece(spelled[i][j])));
    }
  }
  count_pairs();
}

WordpieceTrainer::Id WordpieceTrainer::make_token(const std::string& text) {
  const auto [known, fresh] = ids_by_token_.emplace(text, static_cast<Id>(tokens_.size()));
  if (fresh) tokens_.push_back(text);
  return known->second;
}

void WordpieceTrainer::count_pairs() {
  for (std::uint32_t w = 0; w < words_.size(); ++w) {
    const Word& word = words_[w];
    for (std::size_t i = word.first; i + 1 < word.first + word.length; ++i) {
      add_pair({ids_[i], ids_[i + 1]}, w);
    }
  }
  for (const auto& [pair, occurrences] : pairs_) queue_.push({occurrences.count, pair});
}

void WordpieceTrainer::add_pair(const Pair& pair, std::uint32_t word) {
  Occurrences& occurrences = pairs_[pair];
  occurrences.count += words_[word].count;
  if (occurrences.words.empty() || occurrences.words.back() != word) occurrences.words.push_back(word);
}

bool WordpieceTrainer::step(std::size_t merges) {
  while (merges > 0 && tokens_.size() < options_.size && !queue_.empty()) {
    const Candidate best = queue_.top();
    queue_.pop();
    const auto found = pairs_.find(best.pair);
    if (found == pairs_.end()) continue;
    // Counts that have fallen since are put right when they come to the top.
    if (found->second.count != best.count) {
      if (found->second.count < best.count) queue_.push({found->second.count, best.pair});
      continue;
    }
    if (best.count < std::max<std::uint64_t>(options_.min_frequency, 1)) return false;
    const std::string& right = tokens_[static_cast<std::size_t>(best.pair.second)];
    const Id merged = make_token(tokens_[static_cast<std::size_t>(best.pair.first)] + right.substr(2));
    merge(best.pair, merged);
    --merges;
  }
  return tokens_.size() < options_.size && !queue_.empty();
}

void WordpieceTrainer::merge(const Pair& pair, Id merged) {
  const std::vector<std::uint32_t> words = std::move(pairs_.at(pair).words);
  grown_.clear();
  for (const std::uint32_t word : words) merge_in(word, pair, merged);
  pairs_.erase(pair);
  std::sort(grown_.begin(), grown_.end());
  grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
  for (const Pair& grown : grown_) {
    const auto found = pairs_.find(grown);
    if (found != pairs_.end()) queue_.push({found->second.count, grown});
  }
}

void WordpieceTrainer::merge_in(std::uint32_t w, const Pair& pair, Id merged) {
  Word& word = words_[w];
  Id* const ids = ids_.data() + word.first;
  const auto replace = [&](const Pair& before, const Pair& after) {
    pairs_.at(before).count -= word.count;
    add_pair(after, w);
    grown_.push_back(after);
  };
  std::uint32_t kept = 0;  // what is before ids[kept] is done
  for (std::uint32_t i = 0; i < word.length; ++kept) {
    if (i + 1 == word.length || ids[i] != pair.first || ids[i + 1] != pair.second) {
      ids[kept] = ids[i++];
      continue;
    }
    if (kept > 0) replace({ids[kept - 1], pair.first}, {ids[kept - 1], merged});
    if (i + 2 < word.length) replace({pair.second, ids[i + 2]}, {merged, ids[i + 2]});
    ids[kept] = merged;
    i += 2;
  }
  word.length = kept;
}

}  // namespace motley::io
