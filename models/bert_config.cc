#include "models/bert_config.h"

#include <array>
#include <cmath>
#include <string_view>

#include "core/files.h"

namespace motley {
namespace {

struct Named {
  std::string_view name;
  Activation activation;
};
constexpr std::array activations{Named{"gelu", Activation::gelu}, Named{"relu", Activation::relu},
                                 Named{"swish", Activation::swish}, Named{"silu", Activation::swish}};

std::string_view name_of_activation(Activation activation) {
  for (const Named& known : activations) {
    if (known.activation == activation) return known.name;
  }
  MOTLEY_CHECK(activation == Activation::gelu);
  return "gelu";
}

// Reads values out of one config and knows how to complain.
class Fields {
 public:
  Fields(const Json& json, const std::string& where, ExitCode code) : json_(json), where_(where), code_(code) {
    if (!json.is_object()) fail(code, "{} is not a JSON object; expected a BERT configuration", where);
  }

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  void size(const char* key, bool needed, std::int64_t* out, std::int64_t least = 1) const {
    if (!has(key)) {
      if (needed) fail(code_, "{} has no \"{}\"; expected a number of at least {}", where_, key, least);
      return;
    }
    constexpr std::int64_t most = 1LL << 31;
    const Json& value = json_[key];
    if (!value.is_number_integer() || value.get<double>() < static_cast<double>(least) ||
        value.get<double>() >= static_cast<double>(most)) {
      fail(code_, "{}: \"{}\" is {}; expected a whole number from {} to {}", where_, key, value.dump(), least,
           most - 1);
    }
    *out = value.get<std::int64_t>();
  }

  void number(const char* key, bool zero_allowed, double below, double* out) const {
    if (!has(key)) return;
    const Json& value = json_[key];
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!(number < below && (zero_allowed ? number >= 0 : number > 0))) {
      fail(code_, "{}: \"{}\" is {}; expected a number {} 0 and below {}", where_, key, value.dump(),
           zero_allowed ? "of at least" : "above", below);
    }
    *out = number;
  }

  void text(const char* key, const char* expected) const {
    if (has(key) && json_[key] != expected) {
      fail(code_, "{}: \"{}\" is {}; expected \"{}\"", where_, key, json_[key].dump(), expected);
    }
  }

  void off(const char* key) const {
    if (has(key) && json_[key] != false)
      fail(code_, "{}: \"{}\" is {}; expected false", where_, key, json_[key].dump());
  }

  Activation activation(const char* key) const {
    if (!has(key)) return Activation::gelu;
    std::string list;
    for (const Named& known : activations) {
      if (json_[key] == known.name) return known.activation;
      list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", known.name);
    }
    fail(code_, "{}: \"{}\" is {}; expected one of {}", where_, key, json_[key].dump(), list);
  }

 private:
  const Json& json_;
  const std::string& where_;
  ExitCode code_;
};

}  // namespace

BertConfig parse_bert_config(const Json& json, const std::string& where, ExitCode code) {
  const Fields fields(json, where, code);
  BertConfig config;
  fields.text("model_type", "bert");
  fields.text("position_embedding_type", "absolute");
  fields.off("is_decoder");
  fields.size("vocab_size", true, &config.vocab_size, 2);
  fields.size("hidden_size", true, &config.hidden_size);
  fields.size("num_hidden_layers", true, &config.layers);
  fields.size("num_attention_heads", true, &config.heads);
  fields.size("intermediate_size", true, &config.intermediate_size);
  fields.size("max_position_embeddings", false, &config.max_positions);
  fields.size("type_vocab_size", false, &config.type_vocab_size);
  fields.size("pad_token_id", false, &config.pad_token_id, 0);
  fields.number("hidden_dropout_prob", true, 1, &config.hidden_dropout);
  fields.number("attention_probs_dropout_prob", true, 1, &config.attention_dropout);
  fields.number("initializer_range", false, 1e6, &config.initializer_range);
  fields.number("layer_norm_eps", false, 1, &config.layer_norm_eps);
  config.hidden_act = fields.activation("hidden_act");
  if (config.hidden_size % config.heads != 0) {
    fail(code, "{}: \"hidden_size\" is {} and \"num_attention_heads\" is {}; expected a multiple of the heads",
         where, config.hidden_size, config.heads);
  }
  if (fields.has("tie_word_embeddings") && json["tie_word_embeddings"] != true) {
    fail(code, "{}: \"tie_word_embeddings\" is {}; expected true: the decoder shares the word embeddings", where,
         json["tie_word_embeddings"].dump());
  }
  constexpr std::int64_t most_layers = 10000;
  constexpr double most_parameters = 1e12;
  const auto h = static_cast<double>(config.hidden_size), inner = static_cast<double>(config.intermediate_size);
  const double parameters = static_cast<double>(config.vocab_size + config.max_positions + config.type_vocab_size) * h +
                            static_cast<double>(config.layers) * (4 * h * h + 2 * h * inner);
  if (config.layers > most_layers || parameters > most_parameters) {
    fail(code, "{}: the network has {} layers and about {:.1e} parameters; expected at most {} and {:.0e}", where,
         config.layers, parameters, most_layers, most_parameters);
  }
  if (config.pad_token_id >= config.vocab_size) {
    fail(code, "{}: \"pad_token_id\" is {}; expected less than \"vocab_size\", which is {}", where,
         config.pad_token_id, config.vocab_size);
  }
  return config;
}

BertConfig read_bert_config(const std::filesystem::path& path, ExitCode code) {
  return parse_bert_config(parse_json(read_file(path, code), path.string(), code), path.string(), code);
}

Json BertConfig::to_json() const {
  return {{"architectures", {"BertForPreTraining"}},
          {"model_type", "bert"},
          {"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"intermediate_size", intermediate_size},
          {"hidden_act", name_of_activation(hidden_act) == "swish" ? "silu" : name_of_activation(hidden_act)},
          {"hidden_dropout_prob", hidden_dropout},
          {"attention_probs_dropout_prob", attention_dropout},
          {"max_position_embeddings", max_positions},
          {"type_vocab_size", type_vocab_size},
          {"initializer_range", initializer_range},
          {"layer_norm_eps", layer_norm_eps},
          {"pad_token_id", pad_token_id},
          {"tie_word_embeddings", true}};
}

}  // namespace motley
