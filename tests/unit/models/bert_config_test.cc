#include "models/bert_config.h"

#include <gtest/gtest.h>

namespace motley {
namespace {

Json base() {
  return {{"vocab_size", 100}, {"hidden_size", 24}, {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"intermediate_size", 48}};
}

std::string refusal(const Json& json) {
  try {
    parse_bert_config(json, "bert_config.json", ExitCode::input);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    return error.what();
  }
  return "accepted";
}

TEST(BertConfig, reads_what_google_and_hugging_face_write) {
  Json json = base();
  json["hidden_act"] = "relu";
  json["attention_probs_dropout_prob"] = 0.0;
  json["type_vocab_size"] = 3;
  const BertConfig config = parse_bert_config(json, "here", ExitCode::input);
  EXPECT_EQ(config.hidden_size, 24);
  EXPECT_EQ(config.hidden_act, Activation::relu);
  EXPECT_EQ(config.attention_dropout, 0);
  EXPECT_EQ(config.hidden_dropout, 0.1);
  EXPECT_EQ(config.type_vocab_size, 3);
  EXPECT_EQ(config.layer_norm_eps, 1e-12);
}

TEST(BertConfig, survives_being_written_and_read) {
  for (const char* activation : {"gelu", "relu", "swish", "silu"}) {
    Json json = base();
    json["hidden_act"] = activation;
    const BertConfig config = parse_bert_config(json, "here", ExitCode::input);
    const BertConfig again = parse_bert_config(config.to_json(), "there", ExitCode::input);
    EXPECT_EQ(again.to_json(), config.to_json());
    EXPECT_EQ(again.hidden_act, config.hidden_act);
  }
}

TEST(BertConfig, names_the_key_that_is_wrong) {
  const auto with = [](const char* key, const Json& value) {
    Json json = base();
    json[key] = value;
    return refusal(json);
  };
  EXPECT_EQ(with("num_attention_heads", 5),
            "bert_config.json: \"hidden_size\" is 24 and \"num_attention_heads\" is 5; expected a multiple of the "
            "heads");
  EXPECT_NE(with("hidden_act", "gelu_new").find("\"hidden_act\" is \"gelu_new\"; expected one of \"gelu\""),
            std::string::npos);
  EXPECT_NE(with("hidden_size", 0).find("\"hidden_size\" is 0; expected a whole number from 1"), std::string::npos);
  EXPECT_NE(with("hidden_size", 24.5).find("\"hidden_size\" is 24.5"), std::string::npos);
  EXPECT_NE(with("hidden_dropout_prob", 1).find("expected a number of at least 0 and below 1"), std::string::npos);
  EXPECT_NE(with("layer_norm_eps", "small").find("\"layer_norm_eps\" is \"small\""), std::string::npos);
  EXPECT_NE(with("model_type", "gpt2").find("expected \"bert\""), std::string::npos);
  EXPECT_NE(with("position_embedding_type", "relative_key").find("expected \"absolute\""), std::string::npos);
  EXPECT_NE(with("is_decoder", true).find("\"is_decoder\" is true; expected false"), std::string::npos);
  EXPECT_NE(with("pad_token_id", 100).find("\"pad_token_id\" is 100"), std::string::npos);
  EXPECT_NE(with("tie_word_embeddings", false).find("\"tie_word_embeddings\" is false; expected true"),
            std::string::npos);
  EXPECT_NE(with("num_hidden_layers", 1000000000).find("the network has 1000000000 layers"), std::string::npos);
  Json missing = base();
  missing.erase("vocab_size");
  EXPECT_NE(refusal(missing).find("has no \"vocab_size\""), std::string::npos);
  EXPECT_NE(refusal(Json::array()).find("is not a JSON object"), std::string::npos);
}

}  // namespace
}  // namespace motley
