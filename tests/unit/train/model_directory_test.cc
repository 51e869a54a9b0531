// Which model directories of other programs are read, and that everything that is wrong with one is said at once.
#include "train/model_directory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "models/bert.h"
#include "support/hf_directory.h"
#include "train/stored_model.h"
#include "train/tasks/bert_names.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;
using test::named;
using test::OwnedTensor;
using test::OwnedTensors;

// Memory for the parameters of the golden network.
class Parameters {
 public:
  explicit Parameters(const BertConfig& config = read_bert_config(test::golden_directory() / "config.json"))
      : backend_(make_cpu_backend(1)), bert_(config) {
    bert_.parameters.allocate(*backend_, false);
    wanted = entries_of(bert_.parameters, "", bert_.parameters.values().as<float>());
  }
  std::vector<io::SafetensorsEntry> wanted;
  std::vector<float> all() const {
    const View values = bert_.parameters.values();
    return {values.as<float>(), values.as<float>() + values.elements()};
  }

 private:
  std::unique_ptr<Backend> backend_;
  Bert bert_;
};

class ModelDirectories : public testing::Test {
 protected:
  void write(const std::function<void(OwnedTensors&)>& change) { test::write_hf_directory(path, change); }
  std::vector<std::string> read() { return ModelDirectory(path).read(parameters->wanted, bert_name_rules()); }
  // The sentence of an input error behind the name of the directory; nothing may have been read.
  std::string refusal() {
    const std::vector<float> before = parameters->all();
    try {
      read();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::input) << error.what();
      EXPECT_EQ(parameters->all(), before);
      const std::string sentence = error.what();
      const std::size_t place = sentence.find(path.string());
      EXPECT_NE(place, std::string::npos) << sentence;
      return sentence.substr(std::min(place, sentence.size() - path.string().size()) + path.string().size());
    }
    ADD_FAILURE() << "it was read";
    return {};
  }
  // Reads as the golden directory does.
  void expect_golden() {
    EXPECT_EQ(read(), std::vector<std::string>{});
    Parameters golden;
    ModelDirectory(test::golden_directory()).read(golden.wanted, bert_name_rules());
    EXPECT_EQ(parameters->all(), golden.all());
  }

  test::TemporaryDirectory directory;
  fs::path path = directory.path() / "hf";
  std::unique_ptr<Parameters> parameters = std::make_unique<Parameters>();
};

TEST_F(ModelDirectories, old_names_of_norms_are_known) {
  write([](OwnedTensors& tensors) {
    for (OwnedTensor& tensor : tensors) {
      for (const auto& [now, once] :
           {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}) {
        if (tensor.name.ends_with(now))
          tensor.name.replace(tensor.name.size() - std::strlen(now), std::string::npos, once);
      }
    }
  });
  expect_golden();
}

TEST_F(ModelDirectories, tied_tensors_and_position_ids_may_be_there_as_well) {
  write([](OwnedTensors& tensors) {
    OwnedTensor decoder = named(tensors, "bert.embeddings.word_embeddings.weight");
    decoder.name = "cls.predictions.decoder.weight";
    OwnedTensor bias = named(tensors, "cls.predictions.bias");
    bias.name = "cls.predictions.decoder.bias";
    tensors.push_back(decoder);
    tensors.push_back(bias);
    tensors.push_back(OwnedTensor::of<std::int64_t>("bert.embeddings.position_ids", Shape{1, 9},
                                                    {0, 1, 2, 3, 4, 5, 6, 7, 8}));
  });
  expect_golden();
}

TEST_F(ModelDirectories, a_tied_tensor_may_be_there_instead) {
  write([](OwnedTensors& tensors) {
    named(tensors, "bert.embeddings.word_embeddings.weight").name = "cls.predictions.decoder.weight";
    named(tensors, "cls.predictions.bias").name = "cls.predictions.decoder.bias";
  });
  expect_golden();
}

TEST_F(ModelDirectories, a_bare_model_lacks_the_heads_and_the_beginning_of_its_names) {
  write([](OwnedTensors& tensors) {
    test::remove_prefix(tensors, "cls.");
    for (OwnedTensor& tensor : tensors) tensor.name = tensor.name.substr(std::strlen("bert."));
    tensors.push_back(OwnedTensor::of<std::int64_t>("embeddings.position_ids", Shape{3}, {0, 1, 2}));
  });
  EXPECT_EQ(read(), (std::vector<std::string>{
                        "the masked-language head (cls.predictions.transform.dense.weight, "
                        "cls.predictions.transform.dense.bias, cls.predictions.transform.LayerNorm.weight, "
                        "cls.predictions.transform.LayerNorm.bias, cls.predictions.bias)",
                        "the next-sentence head (cls.seq_relationship.weight, cls.seq_relationship.bias)"}));
}

TEST_F(ModelDirectories, a_masked_language_model_lacks_pooler_and_next_sentence_head) {
  write([](OwnedTensors& tensors) {
    test::remove_prefix(tensors, "bert.pooler.");
    test::remove_prefix(tensors, "cls.seq_relationship.");
  });
  EXPECT_EQ(read(), (std::vector<std::string>{
                        "the pooler (bert.pooler.dense.weight, bert.pooler.dense.bias)",
                        "the next-sentence head (cls.seq_relationship.weight, cls.seq_relationship.bias)"}));
}

TEST_F(ModelDirectories, everything_that_does_not_fit_is_listed_at_once) {
  write([](OwnedTensors& tensors) {
    test::remove_prefix(tensors, "bert.encoder.layer.1.output.dense.bias");
    test::remove_prefix(tensors, "cls.seq_relationship.bias");  // half a head is no head
    named(tensors, "bert.pooler.dense.weight").shape = Shape{256};
    named(tensors, "bert.embeddings.LayerNorm.bias").dtype = DType::i32;
    tensors.push_back(OwnedTensor::of<float>("classifier.weight", Shape{2}, {1, 2}));
    OwnedTensor bias = named(tensors, "cls.predictions.bias");
    bias.name = "cls.predictions.decoder.bias";
    bias.bytes[5] ^= std::byte{1};
    tensors.push_back(bias);
    tensors.push_back(OwnedTensor::of<std::int64_t>("bert.embeddings.position_ids", Shape{3}, {0, 2, 1}));
    OwnedTensor norm = named(tensors, "bert.encoder.layer.0.output.LayerNorm.weight");
    norm.name = "bert.encoder.layer.0.output.LayerNorm.gamma";
    tensors.push_back(norm);
  });
  EXPECT_EQ(
      refusal(),
      " does not hold the parameters of this network; missing: bert.encoder.layer.1.output.dense.bias, "
      "cls.seq_relationship.bias; unknown: classifier.weight; of another shape or type: "
      "bert.embeddings.LayerNorm.bias (is int32 [16], should be float32, float16 or bfloat16 [16]), "
      "bert.pooler.dense.weight (is float32 [256], should be float32, float16 or bfloat16 [16, 16]); not "
      "equal: bert.embeddings.position_ids (to 0, 1, 2, ...), cls.predictions.decoder.bias (to "
      "cls.predictions.bias); there twice: bert.encoder.layer.0.output.LayerNorm.weight (as "
      "bert.encoder.layer.0.output.LayerNorm.gamma)");
}

TEST_F(ModelDirectories, a_config_that_does_not_fit_the_tensors_names_them_all) {
  write([](OwnedTensors&) {});
  BertConfig config = read_bert_config(test::golden_directory() / "config.json");
  config.max_positions = 12;
  config.layers = 1;
  parameters = std::make_unique<Parameters>(config);
  const std::string sentence = refusal();
  for (const char* words : {"unknown: bert.encoder.layer.1.attention.output.LayerNorm.bias",
                            "bert.encoder.layer.1.output.dense.weight",
                            "bert.embeddings.position_embeddings.weight (is float32 [9, 16], should be "
                            "float32, float16 or bfloat16 [12, 16])"}) {
    EXPECT_NE(sentence.find(words), std::string::npos) << words << "\n" << sentence;
  }
}

TEST_F(ModelDirectories, a_model_may_be_in_several_files_with_an_index) {
  write([](OwnedTensors&) {});
  const OwnedTensors tensors = test::read_tensors(path / "model.safetensors");
  fs::remove(path / "model.safetensors");
  OwnedTensors parts[2];
  nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", nlohmann::json::object()}};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    parts[i % 2].push_back(tensors[i]);
    index["weight_map"][tensors[i].name] = i % 2 == 0 ? "part-1.safetensors" : "part-2.safetensors";
  }
  test::write_tensors(path / "part-1.safetensors", parts[0]);
  test::write_tensors(path / "part-2.safetensors", parts[1]);
  const auto write_index = [&](const nlohmann::json& json) {
    write_file(path / "model.safetensors.index.json", json.dump(), ExitCode::input);
  };
  write_index(index);
  expect_golden();

  nlohmann::json wrong = index;
  wrong["weight_map"].erase(parts[0][0].name);
  wrong["weight_map"][parts[0][1].name] = "part-2.safetensors";
  wrong["weight_map"]["made.up"] = "part-1.safetensors";
  write_index(wrong);
  const std::string sentence = refusal();
  for (const std::string& words : {parts[0][0].name + " (in part-1.safetensors, but not in the index)",
                                   parts[0][1].name + " (not in part-2.safetensors)",
                                   std::string("made.up (not in part-1.safetensors)")}) {
    EXPECT_NE(sentence.find(words), std::string::npos) << words << "\n" << sentence;
  }
  wrong = index;
  wrong["weight_map"]["x"] = "../part-1.safetensors";
  write_index(wrong);
  EXPECT_NE(refusal().find("\"../part-1.safetensors\""), std::string::npos);
  write_index(nlohmann::json::array());
  EXPECT_NE(refusal().find("weight_map"), std::string::npos);
  write_index(index);
  fs::remove(path / "part-2.safetensors");
  EXPECT_NE(refusal().find("part-2.safetensors"), std::string::npos);
}

TEST_F(ModelDirectories, a_directory_without_safetensors_says_what_is_missing) {
  fs::create_directory(path);
  write_file(path / "pytorch_model.bin", "x", ExitCode::input);
  EXPECT_EQ(
      refusal(),
      " has no model.safetensors and no model.safetensors.index.json; expected a Hugging Face model that was "
      "saved as safetensors");
}

}  // namespace
}  // namespace motley::train
