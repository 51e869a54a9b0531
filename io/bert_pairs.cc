#include "io/bert_pairs.h"

#include "core/error.h"

namespace motley::io {

PairMaker::PairMaker(const EncodedPiece& piece, const PairOptions& options)
    : piece_(piece), options_(options) {
  const auto& documents = piece_.documents;
  MOTLEY_CHECK(documents.size() >= 2 && options_.max_tokens >= 2);
  alike_.resize(documents.size());
  for (std::size_t first = 0; first < documents.size();) {
    std::size_t end = first + 1;
    while (end < documents.size() && documents[end].number == documents[first].number) ++end;
    // All parts of one document: each counts as one of its own.
    const bool nothing_else = end - first == documents.size();
    for (std::size_t i = first; i < end; ++i) {
      alike_[i] = nothing_else ? EncodedPiece::Range{i, i + 1} : EncodedPiece::Range{first, end};
    }
    first = end;
  }
}

void PairMaker::append(const EncodedPiece& piece, EncodedPiece::Range sentences,
                       std::vector<std::int32_t>& tokens) {
  const auto first = piece.ids.begin() + static_cast<std::ptrdiff_t>(piece.sentences[sentences.first].first);
  const auto end = piece.ids.begin() + static_cast<std::ptrdiff_t>(piece.sentences[sentences.end - 1].end);
  tokens.insert(tokens.end(), first, end);
}

void PairMaker::begin(std::size_t document, const RandomKey& key) {
  document_ = document;
  sentence_ = piece_.documents[document].sentences.first;
  draws_ = Draws(key, static_cast<std::uint32_t>(document));
  // As the reference does, once for a document.
  target_ = options_.max_tokens;
  if (draws_.with_probability(options_.short_sequence_probability)) {
    target_ = draws_.between(2, static_cast<std::uint32_t>(options_.max_tokens));
  }
}

bool PairMaker::next() {
  const std::size_t end = piece_.documents[document_].sentences.end;
  if (sentence_ == end) return false;
  EncodedPiece::Range chunk{sentence_, sentence_};
  std::int64_t length = 0;
  while (chunk.end < end && length < target_) {
    length += static_cast<std::int64_t>(piece_.sentences[chunk.end++].size());
  }
  pair_up(chunk);
  return true;
}

void PairMaker::pair_up(EncodedPiece::Range chunk) {
  std::size_t sentences_of_a = 1;
  if (chunk.size() >= 2) {
    sentences_of_a = draws_.between(1, static_cast<std::uint32_t>(chunk.size() - 1));
  }
  const EncodedPiece::Range of_a{chunk.first, chunk.first + sentences_of_a};
  a_.clear();
  b_.clear();
  append(piece_, of_a, a_);
  pair_.document = pair_.document_of_b = document_;
  pair_.random_next = chunk.size() == 1 || draws_.with_probability(0.5);
  if (pair_.random_next) {
    append_random(target_ - static_cast<std::int64_t>(a_.size()));
    sentence_ = of_a.end;
  } else {
    append(piece_, {of_a.end, chunk.end}, b_);
    sentence_ = chunk.end;
  }
  truncate();
}

std::size_t PairMaker::other_document() {
  const EncodedPiece::Range alike = alike_[document_];
  const std::size_t others = piece_.documents.size() - alike.size();
  const std::size_t drawn = draws_.below(static_cast<std::uint32_t>(others));
  return drawn < alike.first ? drawn : drawn + alike.size();
}

void PairMaker::append_random(std::int64_t length) {
  pair_.document_of_b = other_document();
  const EncodedPiece::Range sentences = piece_.documents[pair_.document_of_b].sentences;
  std::size_t sentence = sentences.first + draws_.below(static_cast<std::uint32_t>(sentences.size()));
  do {
    append(piece_, {sentence, sentence + 1}, b_);
    ++sentence;
  } while (sentence < sentences.end && static_cast<std::int64_t>(b_.size()) < length);
}

void PairMaker::truncate() {
  std::span<const std::int32_t> a = a_, b = b_;
  while (static_cast<std::int64_t>(a.size() + b.size()) > options_.max_tokens) {
    std::span<const std::int32_t>& longer = a.size() > b.size() ? a : b;
    longer = draws_.with_probability(0.5) ? longer.subspan(1) : longer.first(longer.size() - 1);
  }
  pair_.a = a;
  pair_.b = b;
}

}  // namespace motley::io
