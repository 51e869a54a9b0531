// Task bert as a user starts it: training, continuing, judging, and what is said about input that is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/hdf5.h"
#include "support/bert_shards.h"
#include "support/expect_failure.h"
#include "support/metrics.h"
#include "support/paths.h"
#include "support/subprocess.h"
#include "unit/io/test_files.h"

namespace motley {
namespace {

using test::expect_failure;

namespace fs = std::filesystem;

class BertProgram : public ::testing::Test {
 protected:
  BertProgram() {
    test::write_learnable_bert_shards(at("data/train"), {{150, 97}}, 5);
    test::write_learnable_bert_shards(at("data/valid"), {{60}}, 6);
    test::write_bert_config(at("bert_config.json"));
    test::write_bert_vocabulary(at("vocab.txt"));
  }

  std::string at(const std::string& name) const { return (directory_.path() / name).string(); }

  std::vector<std::string> train(std::vector<std::string> more) const {
    std::vector<std::string> arguments{
        "train",          "--task",      "bert",       "--config_file",   at("bert_config.json"), "--data",
        at("data"),       "--save-dir",  at("run"),    "--optimizer",     "adamw",                "--lr",
        "1e-3",           "--threads",   "1",          "--max-sentences", "8",                    "--max-epoch",
        "1",              "--log-format", "none"};
    // What is given replaces what is there.
    for (const std::string& word : more) {
      const auto found = std::find(arguments.begin(), arguments.end(), word);
      if (word.starts_with("--") && found != arguments.end()) arguments.erase(found, found + 2);
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // Changes one number of a data set of a shard.
  void spoil(const std::string& shard, const char* name, hsize_t row, hsize_t column, std::int64_t value) const {
    const io::Hdf5Handle file(H5Fopen(at(shard).c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const io::Hdf5Handle set(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
    const io::Hdf5Handle space(H5Dget_space(set.get()), H5Sclose);
    const hsize_t start[] = {row, column}, count[] = {1, 1};
    ASSERT_GE(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, count, nullptr), 0);
    const hsize_t one = 1;
    const io::Hdf5Handle memory(H5Screate_simple(1, &one, nullptr), H5Sclose);
    ASSERT_GE(H5Dwrite(set.get(), H5T_NATIVE_INT64, memory.get(), space.get(), H5P_DEFAULT, &value), 0);
  }

  std::vector<nlohmann::json> metrics(const std::string& run) const {
    return test::metrics_of(at(run));
  }

  test::TemporaryDirectory directory_;
};

TEST_F(BertProgram, trains_judges_continues_and_leaves_a_model) {
  const test::MpiRun first = test::run_motley(
      3, train({"--policy", "static", "--weights", "1,2,4", "--dict", at("vocab.txt"), "--log-interval", "1"}));
  ASSERT_EQ(first.job.exit_code, 0) << first.job.err;
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 12u) << "11 steps of 24 of 247 samples, one validation";
  for (const char* name : {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy", "perplexity"}) {
    EXPECT_TRUE(lines[0].contains(name)) << name;
    EXPECT_TRUE(lines.back().contains(name)) << name;
  }
  EXPECT_EQ(lines.back()["valid"], "valid");
  EXPECT_NEAR(lines[0]["mlm_loss"].get<double>() + lines[0]["nsp_loss"].get<double>(), lines[0]["loss"].get<double>(),
              1e-9);
  for (const char* file : {"config.json", "vocab.txt", "model.safetensors", "optimizer.h5"})
    EXPECT_TRUE(fs::exists(at("run/latest/") + file)) << file;

  // Configuration and vocabulary are found beside the checkpoint.
  const test::MpiRun judged =
      test::run_motley(2, {"eval", "--task", "bert", "--data", at("data"), "--save-dir", at("run"),
                           "--valid-subset", "valid", "--log-format", "json"});
  ASSERT_EQ(judged.job.exit_code, 0) << judged.job.err;
  const auto result = nlohmann::json::parse(judged.job.out);
  EXPECT_NEAR(result["loss"].get<double>(), lines.back()["loss"].get<double>(), 1e-6);
  EXPECT_EQ(result["samples"], 60);

  const test::MpiRun second =
      test::run_motley(2, train({"--max-epoch", "2", "--log-interval", "1", "--allow-changed-options"}));
  ASSERT_EQ(second.job.exit_code, 0) << second.job.err;
  EXPECT_NE(second.job.err.find("continuing from"), std::string::npos);
  EXPECT_TRUE(fs::exists(at("run/latest/vocab.txt"))) << "carried over from the checkpoint";
}

TEST_F(BertProgram, a_single_file_and_a_list_of_files_are_data_too) {
  const std::string list = at("data/train/shard1.hdf5") + "," + at("data/train/shard0.hdf5");
  for (const auto& [data, samples] : {std::pair{at("data/train/shard1.hdf5"), 97}, std::pair{list, 247}}) {
    const test::MpiRun run = test::run_motley(2, train({"--data", data, "--no-save"}));
    EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
    EXPECT_NE(run.job.err.find(std::to_string(samples) + " training samples"), std::string::npos) << run.job.err;
  }
  const test::MpiRun first = test::run_motley(1, train({"--num-file", "1", "--no-save"}));
  EXPECT_NE(first.job.err.find("150 training samples"), std::string::npos) << first.job.err;
}

TEST_F(BertProgram, unmasked_shards_need_dynamic_masking) {
  test::write_learnable_bert_shards(at("plain"), {{60}, false}, 5);
  expect_failure(test::run_motley(2, train({"--data", at("plain")})), 3,
                 {"masked_lm_positions", "--masking dynamic"});
  expect_failure(test::run_motley(2, train({"--data", at("plain"), "--masking", "dynamic"})), 2,
                 {"--masking dynamic needs --dict, the vocab.txt that the data was made with"});
  const test::MpiRun run = test::run_motley(
      2, train({"--data", at("plain"), "--masking", "dynamic", "--dict", at("vocab.txt"), "--whole-word"}));
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
  // The vocabulary of the checkpoint stands in.
  const test::MpiRun again =
      test::run_motley(2, train({"--data", at("plain"), "--masking", "dynamic", "--whole-word", "--init-from",
                                 at("run"), "--save-dir", at("again")}));
  EXPECT_EQ(again.job.exit_code, 0) << again.job.err;
}

TEST_F(BertProgram, values_that_do_not_fit_are_named_with_file_data_set_and_row) {
  struct Case {
    const char* name;
    hsize_t row, column;
    std::int64_t value;
    const char* expected;
  };
  for (const Case& wrong : {Case{"input_ids", 7, 3, 60, "60"}, Case{"input_ids", 0, 0, -1, "-1"},
                            Case{"masked_lm_positions", 31, 0, 24, "24"}, Case{"masked_lm_ids", 9, 0, 4000, "4000"},
                            Case{"segment_ids", 12, 5, 2, "2"}}) {
    test::write_learnable_bert_shards(at("data/train"), {{150, 97}}, 5);
    spoil("data/train/shard1.hdf5", wrong.name, wrong.row, wrong.column, wrong.value);
    expect_failure(test::run_motley(3, train({})), 3,
                   {"shard1.hdf5: row " + std::to_string(wrong.row), wrong.name, wrong.expected});
    EXPECT_FALSE(fs::exists(at("run/step-00000011")));
    fs::remove_all(at("run"));
  }
}

TEST_F(BertProgram, shards_that_do_not_fit_together_are_refused) {
  const std::string shard = at("data/train/shard1.hdf5");
  const auto change = [&](const std::function<void(hid_t)>& what) {
    test::write_learnable_bert_shards(at("data/train"), {{150, 97}}, 5);
    const io::Hdf5Handle file(H5Fopen(shard.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    what(file.get());
  };
  const auto replace = [](hid_t file, const char* name, const std::vector<hsize_t>& extents) {
    H5Ldelete(file, name, H5P_DEFAULT);
    const io::Hdf5Handle space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
    const io::Hdf5Handle set(
        H5Dcreate2(file, name, H5T_STD_I32LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
    const std::vector<int> zeros(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space.get())));
    H5Dwrite(set.get(), H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data());
  };
  change([](hid_t file) { H5Ldelete(file, "segment_ids", H5P_DEFAULT); });
  expect_failure(test::run_motley(2, train({})), 3, {"shard1.hdf5", "segment_ids"});
  change([&](hid_t file) { replace(file, "input_mask", {97, 23}); });
  expect_failure(test::run_motley(2, train({})), 3, {"shard1.hdf5", "input_mask", "23"});
  change([&](hid_t file) { replace(file, "next_sentence_labels", {96}); });
  expect_failure(test::run_motley(2, train({})), 3, {"shard1.hdf5", "next_sentence_labels", "96"});
  change([&](hid_t file) {
    for (const char* name : {"input_ids", "input_mask", "segment_ids"}) replace(file, name, {97, 30});
  });
  expect_failure(test::run_motley(2, train({})), 3, {"shard1.hdf5", "30", "24"});
  fs::resize_file(shard, fs::file_size(shard) / 2);
  expect_failure(test::run_motley(2, train({})), 3, {"shard1.hdf5"});
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(BertProgram, configurations_and_vocabularies_that_do_not_fit_are_refused) {
  const auto config = [&](const std::string& text) { std::ofstream(at("bert_config.json")) << text; };
  config(R"({"vocab_size": 60, "hidden_size": 30, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8})");
  expect_failure(test::run_motley(2, train({})), 3, {"bert_config.json", "\"hidden_size\" is 30", "multiple"});
  config("{\"vocab_size\": 60");
  expect_failure(test::run_motley(2, train({})), 3, {"bert_config.json"});
  config(R"({"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 8,
             "max_position_embeddings": 16})");
  expect_failure(test::run_motley(2, train({})), 3, {"24", "16"});
  expect_failure(test::run_motley(2, train({"--config_file", at("none.json")})), 3, {"none.json"});
  test::write_bert_config(at("bert_config.json"));
  std::ofstream(at("vocab.txt")) << "[PAD]\n[UNK]\n[CLS]\n[SEP]\nword\n";
  expect_failure(test::run_motley(2, train({"--dict", at("vocab.txt")})), 3, {"vocab.txt", "[MASK]"});
  std::ofstream many(at("vocab.txt"));
  many << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 0; i < 56; ++i) many << "w" << i << "\n";
  many.close();
  expect_failure(test::run_motley(2, train({"--dict", at("vocab.txt")})), 3, {"61 tokens", "60"});
  EXPECT_FALSE(fs::exists(at("run")));
}

TEST_F(BertProgram, options_that_mean_nothing_are_refused) {
  expect_failure(test::run_motley(2, train({"--precision", "fp16"})), 2, {"--precision", "fp16"});
  expect_failure(test::run_motley(2, train({"--precision", "tf32"})), 2, {"--precision is \"tf32\""});
  expect_failure(test::run_motley(2, train({"--masked-lm-prob", "0.2"})), 2, {"--masked-lm-prob", "dynamic"});
  expect_failure(test::run_motley(2, train({"--momentum", "0.9"})), 2,
                 {"--momentum is for --optimizer sgd; this is adamw"});
  expect_failure(test::run_motley(1, {"train", "--task", "mnist", "--data", at("data"), "--max-epoch", "1",
                                      "--recompute"}),
                 2, {"--recompute is for task bert"});
  expect_failure(test::run_motley(1, {"train", "--task", "bert", "--data", at("data"), "--max-epoch", "1",
                                      "--save-dir", at("run")}),
                 2, {"--config_file is missing"});
}

}  // namespace
}  // namespace motley
