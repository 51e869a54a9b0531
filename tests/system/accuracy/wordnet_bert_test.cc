// From English text to a language model, by the commands that a user would give: the glosses of WordNet are made
// a vocabulary of, tokenised, packed, and a small BERT is pretrained on them by 4 ranks with unequal shares. It
// must predict masked tokens clearly better than their frequencies do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/bert_record.h"
#include "io/bert_set.h"
#include "support/metrics.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr int glosses_per_document = 8, documents_per_valid_one = 25;

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \""), last = text.find_last_not_of(" \"");
  return first == std::string::npos ? std::string() : text.substr(first, last - first + 1);
}

// The glosses of WordNet's data files: definition and examples are sentences, neighbours a document. Every 25th
// document is for validation.
void write_corpus(const fs::path& wordnet, const fs::path& train, const fs::path& valid) {
  std::ofstream train_file(train), valid_file(valid);
  int glosses = 0;
  for (const char* part : {"noun", "verb", "adj", "adv"}) {
    std::ifstream data(wordnet / (std::string("data.") + part));
    for (std::string line; std::getline(data, line);) {
      const std::size_t bar = line.find('|');
      if (line.starts_with("  ") || bar == std::string::npos) continue;
      const int document = glosses++ / glosses_per_document;
      std::ofstream& out = document % documents_per_valid_one == 0 ? valid_file : train_file;
      std::string rest = line.substr(bar + 1);
      while (!rest.empty()) {
        const std::size_t end = std::min(rest.find(';'), rest.size());
        const std::string sentence = trimmed(rest.substr(0, end));
        if (!sentence.empty()) out << sentence << '\n';
        rest.erase(0, end + 1);
      }
      if (glosses % glosses_per_document == 0) out << '\n';
    }
  }
  ASSERT_GT(glosses, 100000);
}

// In nats, of the tokens that are to be predicted: the loss of a model that knows their frequencies and nothing
// else.
double unigram_entropy(const fs::path& packed) {
  const io::RowSource source = io::describe_bert_set({packed.string()}, 0, {});
  std::ifstream file(packed, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(source.fields.at(0).file_offset));
  std::map<std::int32_t, double> counts;
  double total = 0;
  std::vector<char> record(source.bert->row_bytes());
  std::vector<std::int32_t> positions(source.bert->masked()), labels(source.bert->masked());
  for (std::uint64_t row = 0; row < source.rows; ++row) {
    file.read(record.data(), static_cast<std::streamsize>(record.size()));
    io::BertArrays arrays;
    arrays.masked_lm_positions = positions;
    arrays.masked_lm_ids = labels;
    io::unpack(*source.bert, reinterpret_cast<const std::byte*>(record.data()), arrays);
    for (std::size_t i = 0; i < positions.size() && positions[i] > 0; ++i, ++total) ++counts[labels[i]];
  }
  double entropy = 0;
  for (const auto& [id, count] : counts) entropy -= count / total * std::log(count / total);
  return entropy;
}

void run(const std::vector<std::string>& arguments, int ranks = 1) {
  const test::MpiRun finished = test::run_motley(ranks, arguments, 1200);
  ASSERT_EQ(finished.job.exit_code, 0) << finished.job.err;
}

TEST(WordNet, a_small_bert_learns_english_on_4_unequal_ranks) {
  const char* elsewhere = std::getenv("MOTLEY_WORDNET");
  const fs::path wordnet = elsewhere != nullptr ? elsewhere : "/usr/share/wordnet";
  ASSERT_TRUE(fs::exists(wordnet / "data.noun"))
      << "there is no WordNet in " << wordnet << ": install wordnet-base, or set MOTLEY_WORDNET to its folder";
  const test::TemporaryDirectory directory;
  const fs::path at = directory.path(), data = at / "data";
  const auto path = [&](const char* name) { return (at / name).string(); };
  write_corpus(wordnet, at / "train.txt", at / "valid.txt");
  std::ofstream(at / "bert_config.json")
      << R"({"vocab_size": 4000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
             "intermediate_size": 512, "max_position_embeddings": 64,
             "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1})";
  run({"data", "vocab", "--input", path("train.txt"), "--size", "4000", "--out", path("vocab.txt")});
  for (const std::string subset : {"train", "valid"}) {
    run({"data", "bert", "--input", (at / (subset + ".txt")).string(), "--dict", path("vocab.txt"),
         "--max-seq-length", "64", "--out", (at / (subset + "-shards")).string()},
        2);
    fs::create_directories(data);
    run({"data", "pack", "--data", (at / (subset + "-shards")).string(), "--out",
         (data / (subset + ".h5")).string()},
        2);
  }
  run({"train",
       "--task", "bert", "--config_file", path("bert_config.json"), "--dict", path("vocab.txt"),
       "--data", data.string(), "--save-dir", path("run"), "--policy", "static", "--weights", "1,2,3,2",
       "--optimizer", "adamw", "--lr", "1e-3", "--adam-betas", "0.9,0.98", "--adam-eps", "1e-6",
       "--weight-decay", "0.01", "--clip-norm", "1", "--warmup-updates", "100", "--total-num-update", "800",
       "--max-update", "700", "--global-batch", "64", "--max-sentences", "32", "--save-interval", "0",
       "--log-format", "none", "--threads", "1"},
      4);
  if (HasFatalFailure()) return;

  const double entropy = unigram_entropy(data / "valid.h5");
  double loss = 0, accuracy = 0;
  for (const nlohmann::json& json : test::metrics_of(at / "run")) {
    if (!json.contains("valid")) continue;
    loss = json["mlm_loss"];
    accuracy = json["mlm_accuracy"];
  }
  std::printf("masked-token loss %.3f, accuracy %.1f %%; unigram entropy %.3f\n", loss, 100 * accuracy, entropy);
  EXPECT_GT(loss, 0);
  EXPECT_LT(loss, entropy - 0.4) << "a perplexity of two thirds of that of the frequencies";
}

}  // namespace
}  // namespace motley
