// A small BERT data set that can be learned: every second token follows from the one before it, and the first
// token of the second sentence tells whether it belongs to the first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace motley::test {

constexpr std::int64_t bert_seq = 24, bert_predictions = 5, bert_vocab = 60;

struct BertSample {
  std::vector<std::int32_t> ids, mask, types;      // [bert_seq]
  std::vector<std::int32_t> positions, labels;     // [bert_predictions], 0 behind the last
  std::int32_t next_sentence = 0;
};
BertSample learnable_bert_sample(unsigned seed, std::uint32_t index);

struct BertShardForm {
  std::vector<int> rows;  // of each shard
  bool masked = true;     // with masked_lm_positions and masked_lm_ids, the tokens being masked
  int chunk_rows = 32;    // gzip chunks of this many rows
};
// Writes shard0.hdf5, shard1.hdf5, ... into the directory.
void write_learnable_bert_shards(const std::filesystem::path& directory, const BertShardForm& form, unsigned seed);

// The bert_config.json of a tiny network for it, with dropout; and its vocab.txt.
void write_bert_config(const std::filesystem::path& path, const std::string& activation = "gelu");
void write_bert_vocabulary(const std::filesystem::path& path);

}  // namespace motley::test
