// The sizes of a BERT network, as bert_config.json / Hugging Face's config.json hold them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "kernels/backend.h"

namespace motley {

struct BertConfig {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t layers = 12;  // "num_hidden_layers"
  std::int64_t heads = 12;   // "num_attention_heads"
  std::int64_t intermediate_size = 3072;
  Activation hidden_act = Activation::gelu;
  double hidden_dropout = 0.1;     // "hidden_dropout_prob"
  double attention_dropout = 0.1;  // "attention_probs_dropout_prob"
  std::int64_t max_positions = 512;  // "max_position_embeddings"
  std::int64_t type_vocab_size = 2;
  double initializer_range = 0.02;
  double layer_norm_eps = 1e-12;
  std::int64_t pad_token_id = 0;

  // A config.json that Hugging Face's BertForPreTraining loads.
  Json to_json() const;
};

// Reads bert_config.json or config.json. What is not there has BERT's default, but the sizes that a network is
// made of must be there: vocab_size, hidden_size, num_hidden_layers, num_attention_heads and
// intermediate_size. Throws Error(code) that names the file, the key, and what was expected; a network that is
// not BERT's encoder ("model_type", positions other than absolute, "is_decoder") is one.
BertConfig read_bert_config(const std::filesystem::path& path, ExitCode code = ExitCode::input);
BertConfig parse_bert_config(const Json& json, const std::string& where, ExitCode code);

}  // namespace motley
