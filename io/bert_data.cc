#include "io/bert_data.h"

#include "core/error.h"
#include "io/bert_record.h"

namespace motley::io {
namespace {

constexpr std::int64_t special_tokens_of_a_pair = 3;  // [CLS] A [SEP] B [SEP]

}  // namespace

BertDataMaker::BertDataMaker(const Vocabulary& vocabulary, const BertDataOptions& options)
    : vocabulary_(vocabulary), options_(options), tokenizer_(vocabulary, !options.cased) {
  if (options_.split_sentences) splitter_.emplace();
}

void BertDataMaker::encode_sentence(std::string_view sentence, EncodedPiece& encoded) {
  const std::size_t first = encoded.ids.size();
  tokenizer_.encode(sentence, encoded.ids);
  if (encoded.ids.size() > first) encoded.sentences.push_back({first, encoded.ids.size()});
}

void BertDataMaker::encode(const Piece& piece, EncodedPiece& encoded) {
  encoded.ids.clear();
  encoded.sentences.clear();
  encoded.documents.clear();
  for (const Document& document : piece.documents) {
    const std::size_t first = encoded.sentences.size();
    std::string_view text =
        std::string_view(piece.text).substr(document.first, document.end - document.first);
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end + 1);
      if (splitter_) {
        for (const std::string_view sentence : splitter_->split(line)) encode_sentence(sentence, encoded);
      } else {
        encode_sentence(line, encoded);
      }
    }
    if (encoded.sentences.size() > first) {
      encoded.documents.push_back({{first, encoded.sentences.size()}, document.number});
    }
  }
}

void BertDataMaker::make_sequences(EncodedPiece& encoded, std::uint32_t piece, std::int64_t dupe,
                                   BertShard& shard) {
  PairMaker pairs(encoded,
                  {options_.max_sequence - special_tokens_of_a_pair, options_.short_sequence_probability});
  const auto repeat = static_cast<std::uint32_t>(dupe);
  const RandomKey pair_key(options_.seed, Purpose::sentence_pairs, repeat, piece);
  const RandomKey mask_key(options_.seed, Purpose::masking, repeat, piece);
  std::uint32_t sequence = 0;
  std::vector<std::int32_t> ids, positions, labels;
  pairs.make(pair_key, [&](const SentencePair& pair) {
    ids.assign(1, vocabulary_.cls());
    ids.insert(ids.end(), pair.a.begin(), pair.a.end());
    ids.push_back(vocabulary_.sep());
    const std::size_t first_segment = ids.size();
    ids.insert(ids.end(), pair.b.begin(), pair.b.end());
    ids.push_back(vocabulary_.sep());
    positions.clear();
    labels.clear();
    if (options_.static_masks) {
      mask_sequence(options_.masking, vocabulary_, mask_key, sequence, ids, positions, labels);
    }
    ++sequence;
    shard.add(ids, first_segment, positions, labels, pair.random_next);
  });
}

ShardLayout BertDataMaker::layout(const Piece& piece) const {
  ShardLayout result;
  result.sequence = options_.max_sequence;
  result.predictions = options_.static_masks ? options_.masking.max_predictions : 0;
  result.gzip_level = options_.gzip_level;
  result.attributes = {
      {"format", std::string("motley bert data 1")},
      {"shard", std::int64_t{piece.index}},
      {"vocab_size", std::int64_t{vocabulary_.size()}},
      {vocabulary_attribute, vocabulary_fingerprint(vocabulary_)},
      {"lower_case", std::int64_t{options_.cased ? 0 : 1}},
      {"split_sentences", std::int64_t{options_.split_sentences ? 1 : 0}},
      {"seed", std::to_string(options_.seed)},  // HDF5 attributes of this file have no unsigned type
      {"max_seq_length", options_.max_sequence},
      {"short_seq_prob", options_.short_sequence_probability},
      {"dupe_factor", options_.dupe_factor},
      {"masking", std::string(options_.static_masks ? "static" : "none")},
  };
  if (options_.static_masks) {
    result.attributes.insert({{"max_predictions_per_seq", options_.masking.max_predictions},
                              {"masked_lm_prob", options_.masking.probability},
                              {"whole_word", std::int64_t{options_.masking.whole_word ? 1 : 0}}});
  }
  return result;
}

BertDataCounts BertDataMaker::make_shard(const Piece& piece, const std::string& path) {
  const std::uint64_t replaced_before = tokenizer_.replaced_invalid();
  encode(piece, encoded_);
  if (encoded_.documents.size() < 2) {
    fail(ExitCode::input,
         "{}: of the {} documents that begin there, {} any characters that BERT knows; sentence pairs need "
         "two",
         piece.first_place, piece.documents.size(), encoded_.documents.empty() ? "none has" : "only one has");
  }
  BertShard shard(layout(piece));
  for (std::int64_t dupe = 0; dupe < options_.dupe_factor; ++dupe) {
    make_sequences(encoded_, piece.index, dupe, shard);
  }
  shard.write(path);
  return {encoded_.documents.size(), encoded_.sentences.size(), encoded_.ids.size(), shard.rows(),
          tokenizer_.replaced_invalid() - replaced_before};
}

}  // namespace motley::io
