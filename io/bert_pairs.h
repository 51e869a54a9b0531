// Sentence pairs for BERT's next-sentence prediction, as Google's create_pretraining_data.py makes them: the
// sentences of a document are packed until the sequence is full (or, with short_sequence_probability, a
// random shorter length is reached), and cut at a random sentence into A and B; half of the time, and always
// when there is nothing to cut, B is replaced by sentences from a random place of another document, and the
// sentences that were B are used again. What is still too long loses tokens at random from the front or the
// back of the longer of the two.
//
// Unlike there, the other document is never the same one by chance, and is one of the same piece. (A piece that
// holds parts of one cut document and nothing else takes another part.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/philox.h"
#include "io/draws.h"

namespace motley::io {

// A piece of the corpus as ids. Sentences and documents are in order and none is empty.
struct EncodedPiece {
  struct Range {
    std::size_t first = 0, end = 0;
    std::size_t size() const { return end - first; }
  };
  struct Document {
    Range sentences;
    std::uint64_t number = 0;  // parts of a document that was cut have the same
  };

  std::vector<std::int32_t> ids;
  std::vector<Range> sentences;  // in ids
  std::vector<Document> documents;
};

struct PairOptions {
  std::int64_t max_tokens = 125;  // of A and B together
  double short_sequence_probability = 0.1;
};

// One pair; the ids are valid during the call.
struct SentencePair {
  std::span<const std::int32_t> a, b;  // neither is empty
  bool random_next = false;
  std::size_t document = 0, document_of_b = 0;  // in EncodedPiece::documents
};

class PairMaker {
 public:
  // `piece` has at least two documents.
  PairMaker(const EncodedPiece& piece, const PairOptions& options);

  // Calls use(pair) for the pairs of all documents, in order. The numbers of a document are those of its
  // place in the piece as the slot of `key`.
  template <class Use>
  void make(const RandomKey& key, const Use& use) {
    for (std::size_t document = 0; document < piece_.documents.size(); ++document) {
      begin(document, key);
      while (next()) use(pair_);
    }
  }

 private:
  void begin(std::size_t document, const RandomKey& key);
  bool next();
  void pair_up(EncodedPiece::Range chunk);
  std::size_t other_document();
  void append_random(std::int64_t length);
  void truncate();
  static void append(const EncodedPiece& piece, EncodedPiece::Range sentences,
                     std::vector<std::int32_t>& tokens);

  const EncodedPiece& piece_;
  PairOptions options_;
  std::vector<EncodedPiece::Range> alike_;  // by document: those with the same number

  std::size_t document_ = 0, sentence_ = 0;
  std::int64_t target_ = 0;
  Draws draws_{RandomKey(), 0};
  std::vector<std::int32_t> a_, b_;
  SentencePair pair_;
};

}  // namespace motley::io
