// From a piece of a corpus to a shard of BERT training data: tokens, sentence pairs, masks, HDF5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/bert_pairs.h"
#include "io/bert_shard.h"
#include "io/document_pieces.h"
#include "io/masking.h"
#include "io/sentence_splitter.h"
#include "io/tokenizer.h"

namespace motley::io {

struct BertDataOptions {
  bool cased = false;
  bool split_sentences = false;  // lines are running text, not single sentences
  std::int64_t max_sequence = 128;
  bool static_masks = true;  // false: no masks, for those that are drawn anew while training
  MaskingOptions masking;
  double short_sequence_probability = 0.1;
  std::int64_t dupe_factor = 1;  // how often each document is used, with other pairs and masks
  std::uint64_t seed = 1;
  unsigned gzip_level = 4;
};

struct BertDataCounts {
  std::uint64_t documents = 0;  // parts of documents that were cut count
  std::uint64_t sentences = 0, tokens = 0, sequences = 0;
  std::uint64_t replaced_invalid = 0;  // pieces of the text that were not UTF-8
};

class BertDataMaker {
 public:
  // `vocabulary` must outlive the object.
  BertDataMaker(const Vocabulary& vocabulary, const BertDataOptions& options);

  // Writes the shard of `piece` to `path`: the same bytes for the same piece, options and vocabulary.
  // Error(input) when fewer than two documents of the piece have any tokens.
  BertDataCounts make_shard(const Piece& piece, const std::string& path);

 private:
  void encode(const Piece& piece, EncodedPiece& encoded);
  void encode_sentence(std::string_view sentence, EncodedPiece& encoded);
  void make_sequences(EncodedPiece& encoded, std::uint32_t piece, std::int64_t dupe, BertShard& shard);
  ShardLayout layout(const Piece& piece) const;

  const Vocabulary& vocabulary_;
  BertDataOptions options_;
  Tokenizer tokenizer_;
  std::optional<SentenceSplitter> splitter_;
  EncodedPiece encoded_;
};

}  // namespace motley::io
