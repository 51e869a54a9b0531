// motley import and export, and runs that begin with the parameters of others, under mpirun.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "support/expect_failure.h"
#include "support/hf_directory.h"
#include "support/metrics.h"
#include "support/paths.h"
#include "support/subprocess.h"
#include "unit/io/bert_files.h"

namespace motley {
namespace {

using test::expect_failure;

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

std::string bytes_of(const fs::path& path) {
  return read_file(path, ExitCode::input);
}

class ExchangeProgram : public ::testing::Test {
 protected:
  ExchangeProgram() {
    fs::create_directory(at / "short");
    fs::create_directory(at / "long");
    test::write_shard((at / "short" / "shard0.hdf5").string(), {.rows = 40, .tokens = 8});
    test::write_shard((at / "long" / "shard0.hdf5").string(), {.rows = 40, .tokens = 24});
    const json config = {{"vocab_size", 1000},      {"hidden_size", 8},
                         {"num_hidden_layers", 2},  {"num_attention_heads", 2},
                         {"intermediate_size", 12}, {"max_position_embeddings", 24}};
    write_file(at / "config.json", config.dump(), ExitCode::input);
  }

  // motley train on DATA into RUN.
  test::MpiRun train(int ranks, const std::string& data, const std::string& run, const Words& more) {
    Words words = {"train",
                   "--task",
                   "bert",
                   "--data",
                   (at / data).string(),
                   "--save-dir",
                   (at / run).string(),
                   "--global-batch",
                   "8",
                   "--policy",
                   "sync",
                   "--log-interval",
                   "1"};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_motley(ranks, words);
  }
  void train_first_phase() {
    const test::MpiRun run = train(2, "short", "first",
                                   {"--config-file", (at / "config.json").string(), "--max-update", "3",
                                    "--optimizer", "lamb", "--lr", "0.01"});
    ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  }
  std::vector<double> losses(const std::string& run) { return test::values_of(at / run, "loss", "step"); }
  json trainer(const std::string& run) { return json::parse(bytes_of(at / run / "latest" / "trainer.json")); }

  test::TemporaryDirectory directory;
  fs::path at = directory.path();
};

TEST_F(ExchangeProgram, import_and_export_do_the_same_on_any_number_of_ranks) {
  for (const int ranks : {1, 3}) {
    const fs::path run = at / ("run" + std::to_string(ranks)), out = at / ("out" + std::to_string(ranks));
    const test::MpiRun imported = test::run_motley(
        ranks, {"import", "--from", test::golden_directory().string(), "--save-dir", run.string()});
    ASSERT_EQ(imported.job.exit_code, 0) << imported.job.err;
    EXPECT_EQ(test::names_in(run), (Words{"latest", "step-00000000"}));
    const test::MpiRun exported =
        test::run_motley(ranks, {"export", "--save-dir", run.string(), "--restore-file", "latest", "--out",
                                 out.string(), "--dtype", "bf16"});
    ASSERT_EQ(exported.job.exit_code, 0) << exported.job.err;
    EXPECT_NE(exported.job.err.find("bfloat16"), std::string::npos) << exported.job.err;
  }
  for (const char* name : {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}) {
    EXPECT_EQ(bytes_of(at / "out1" / name), bytes_of(at / "out3" / name)) << name;
  }
}

// With a rate of 0 a run ends with the parameters that it began with.
TEST_F(ExchangeProgram, a_second_phase_begins_with_the_parameters_of_the_first_and_longer_sequences) {
  ASSERT_NO_FATAL_FAILURE(train_first_phase());
  ASSERT_EQ(
      test::run_motley(1, {"export", "--save-dir", (at / "first").string(), "--out", (at / "hf").string()})
          .job.exit_code,
      0);
  const std::string first = bytes_of(at / "first" / "latest" / "model.safetensors");
  int number = 0;
  for (const char* source : {"first", "first/latest", "hf"}) {
    for (const int ranks : {1, 3}) {
      const std::string name = "second" + std::to_string(number++);
      const test::MpiRun run = train(
          ranks, "long", name,
          {"--init-from", (at / source).string(), "--max-update", "2", "--optimizer", "adamw", "--lr", "0"});
      ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
      EXPECT_EQ(bytes_of(at / name / "latest" / "model.safetensors"), first) << source << " on " << ranks;
      EXPECT_EQ(bytes_of(at / name / "latest" / "config.json"),
                bytes_of(at / "first" / "latest" / "config.json"));
      EXPECT_EQ(trainer(name)["step"], 2);
      EXPECT_EQ(trainer(name)["options"]["init-from"], (at / source).string());
    }
  }
}

TEST_F(ExchangeProgram, a_run_that_has_begun_only_remembers_where_its_parameters_came_from) {
  ASSERT_NO_FATAL_FAILURE(train_first_phase());
  const Words begin = {"--init-from", (at / "first").string(), "--optimizer", "sgd", "--lr", "0.1"};
  const auto with = [&](const char* updates) {
    Words words = begin;
    words.insert(words.end(), {"--max-update", updates});
    return words;
  };
  ASSERT_EQ(train(2, "short", "whole", with("4")).job.exit_code, 0);
  ASSERT_EQ(train(2, "short", "parts", with("2")).job.exit_code, 0);
  fs::rename(at / "first", at / "gone");
  const test::MpiRun second = train(2, "short", "parts", with("4"));
  ASSERT_EQ(second.job.exit_code, 0) << second.job.err;
  EXPECT_NE(second.job.err.find("--init-from plays no part"), std::string::npos) << second.job.err;
  EXPECT_EQ(losses("parts"), losses("whole"));
  EXPECT_TRUE(bytes_of(at / "parts" / "latest" / "model.safetensors") ==
              bytes_of(at / "whole" / "latest" / "model.safetensors"));
}

TEST_F(ExchangeProgram, an_imported_model_is_judged_and_trained_like_one_begun_with_init_from) {
  ASSERT_NO_FATAL_FAILURE(train_first_phase());
  const auto run = [](int ranks, const Words& words) {
    const test::MpiRun done = test::run_motley(ranks, words);
    EXPECT_EQ(done.job.exit_code, 0) << done.job.err;
    return done.job.out;
  };
  run(1, {"export", "--save-dir", (at / "first").string(), "--out", (at / "hf").string()});
  run(3, {"import", "--from", (at / "hf").string(), "--save-dir", (at / "imported").string()});
  const auto judge = [&](const char* name) {
    json result =
        json::parse(run(3, {"eval", "--task", "bert", "--data", (at / "long").string(), "--valid-subset",
                            "train", "--save-dir", (at / name).string(), "--log-format", "json"}));
    result.erase("step");
    return result;
  };
  EXPECT_EQ(judge("imported"), judge("first"));

  const Words how = {"--max-update", "3", "--optimizer", "adamw", "--lr", "0.01", "--keep-last-epochs", "2"};
  ASSERT_EQ(train(3, "long", "imported", how).job.exit_code, 0);
  Words direct = how;
  direct.insert(direct.end(), {"--init-from", (at / "hf").string()});
  ASSERT_EQ(train(3, "long", "direct", direct).job.exit_code, 0);
  EXPECT_EQ(losses("imported").size(), 3u);
  EXPECT_EQ(losses("imported"), losses("direct"));
  EXPECT_EQ(bytes_of(at / "imported" / "latest" / "model.safetensors"),
            bytes_of(at / "direct" / "latest" / "model.safetensors"));
  EXPECT_TRUE(fs::exists(at / "imported" / "step-00000000")) << "kept as the end of an epoch is";
}

TEST_F(ExchangeProgram, heads_that_are_absent_are_named_by_both_ways) {
  test::write_hf_directory(at / "hf", [](test::OwnedTensors& tensors) {
    test::remove_prefix(tensors, "cls.");
    for (test::OwnedTensor& tensor : tensors) tensor.name = tensor.name.substr(std::strlen("bert."));
  });
  const test::MpiRun imported =
      test::run_motley(3, {"import", "--from", (at / "hf").string(), "--save-dir", (at / "run").string()});
  EXPECT_EQ(imported.job.exit_code, 0);
  test::write_shard((at / "tiny.hdf5").string(),
                    {.rows = 8, .tokens = 8, .spoil = [](const std::string& name, auto& values) {
                       const bool ids = name == "input_ids" || name == "masked_lm_ids";
                       for (std::int64_t& value : values) value = ids ? value % 12 : value;
                     }});
  const test::MpiRun begun =
      train(3, "tiny.hdf5", "begun", {"--init-from", (at / "hf").string(), "--max-update", "1"});
  EXPECT_EQ(begun.job.exit_code, 0);
  for (const test::MpiRun* run : {&imported, &begun}) {
    for (const char* words :
         {"the masked-language head (cls.predictions.", "; the next-sentence head (cls.seq_relationship."})
      EXPECT_NE(run->job.err.find(words), std::string::npos) << words << "\n" << run->job.err;
  }
}

// What is wrong with a directory ends import and train alike, on all ranks, and leaves nothing.
class ForeignDirectory : public ExchangeProgram {
 protected:
  void expect_refused(const Words& words) {
    const fs::path run = at / "run";
    expect_failure(
        test::run_motley(3, {"import", "--from", (at / "hf").string(), "--save-dir", run.string()}), 3,
        words);
    expect_failure(
        test::run_motley(3, {"train", "--task", "bert", "--data", (at / "short").string(), "--save-dir",
                             run.string(), "--config-file", (at / "config.json").string(), "--init-from",
                             (at / "hf").string(), "--max-update", "1", "--global-batch", "8"}),
        3, words);
    EXPECT_FALSE(fs::exists(run));
  }
  void write_model(const std::string& bytes) {
    write_file(at / "hf" / "model.safetensors", bytes, ExitCode::input);
  }
};

TEST_F(ForeignDirectory, that_is_not_there_or_has_no_model) {
  expect_refused({"there is no directory " + (at / "hf").string()});
  fs::create_directory(at / "hf");
  expect_refused({"hf has no model.safetensors"});
}

TEST_F(ForeignDirectory, whose_file_is_cut_short_or_lies) {
  test::write_hf_directory(at / "hf", [](test::OwnedTensors&) {});
  const std::string whole = bytes_of(at / "hf" / "model.safetensors");
  write_model(whole.substr(0, whole.size() - 10));
  expect_refused({"model.safetensors", "a range inside the"});
  write_model(whole.substr(0, 100));
  expect_refused({"announces a header of", "cut short"});
  write_model(std::string(8, '\xff') + whole.substr(8));
  expect_refused({"announces a header of 18446744073709551615"});
  std::string lying = whole;
  const std::string shape = "\"shape\":[9,16]";
  ASSERT_NE(lying.find(shape), std::string::npos);
  lying.replace(lying.find(shape), shape.size(), "\"shape\":[8,16]");
  write_model(lying);
  expect_refused({"bert.embeddings.position_embeddings.weight", "has 576 bytes; F32 [8, 16] takes 512"});
}

TEST_F(ForeignDirectory, whose_tensors_do_not_fit_its_config) {
  test::write_hf_directory(at / "hf", [](test::OwnedTensors&) {},
                           {{"hidden_size", 8}, {"vocab_size", 13}, {"num_hidden_layers", 1}});
  const fs::path run = at / "run";
  expect_failure(
      test::run_motley(3, {"import", "--from", (at / "hf").string(), "--save-dir", run.string()}), 3,
      {"unknown: bert.encoder.layer.1.", "bert.embeddings.word_embeddings.weight (is float32 [12, 16]",
       "[13, 8])", "cls.predictions.bias (is float32 [12]"});
  EXPECT_FALSE(fs::exists(run));
  write_file(at / "hf" / "config.json", "{\"model_type\": \"roberta\"}", ExitCode::input);
  expect_failure(test::run_motley(3, {"import", "--from", (at / "hf").string(), "--save-dir", run.string()}),
                 3, {"config.json", "roberta"});
  fs::remove(at / "hf" / "config.json");
  expect_failure(test::run_motley(3, {"import", "--from", (at / "hf").string(), "--save-dir", run.string()}),
                 3, {"has no config.json"});
  EXPECT_FALSE(fs::exists(run));
}

TEST_F(ExchangeProgram, an_image_network_goes_out_and_comes_in_again_and_is_judged_the_same) {
  fs::create_directory(at / "images");
  test::write_learnable_images(at / "images" / "train.h5", 60, 1);
  const std::string data = (at / "images").string(), out = (at / "out").string();
  const auto run = [&](const char* name) { return (at / name).string(); };
  const auto succeed = [](int ranks, const std::vector<std::string>& arguments) {
    const test::MpiRun done = test::run_motley(ranks, arguments);
    ASSERT_EQ(done.job.exit_code, 0) << done.job.err;
  };
  succeed(2, {"train", "--task", "images", "--arch", "resnet8", "--data", data, "--save-dir", run("trained"),
              "--global-batch", "20", "--lr", "0.01", "--max-update", "3"});
  succeed(2, {"export", "--save-dir", run("trained"), "--out", out});
  succeed(2, {"import", "--task", "images", "--from", out, "--save-dir", run("imported")});
  const auto judge = [&](const char* name) {
    const test::MpiRun judged =
        test::run_motley(1, {"eval", "--task", "images", "--data", data, "--save-dir", run(name),
                             "--valid-subset", "train", "--log-format", "json"});
    EXPECT_EQ(judged.job.exit_code, 0) << judged.job.err;
    return json::parse(judged.job.out)["loss"].get<double>();
  };
  EXPECT_EQ(judge("imported"), judge("trained"));
  succeed(2, {"train", "--task", "images", "--data", data, "--save-dir", run("imported"), "--global-batch",
              "20", "--lr", "0.01", "--max-update", "2"});
  EXPECT_TRUE(fs::exists(at / "imported" / "step-00000002"));
}

TEST_F(ExchangeProgram, checkpoints_and_options_that_will_not_do) {
  ASSERT_NO_FATAL_FAILURE(train_first_phase());
  const std::string first = (at / "first").string(), out = (at / "out").string();
  // Another network than the one of the checkpoint.
  json config = json::parse(bytes_of(at / "config.json"));
  config["hidden_size"] = 10;
  write_file(at / "other.json", config.dump(), ExitCode::input);
  expect_failure(
      train(3, "short", "run",
            {"--init-from", first, "--config-file", (at / "other.json").string(), "--max-update", "1"}),
      4, {"bert.pooler.dense.bias (is float32 [8], should be float32 [10])", "cls.seq_relationship.weight"});
  EXPECT_FALSE(fs::exists(at / "run"));

  const fs::path model = fs::canonical(at / "first" / "latest") / "model.safetensors";
  std::string bytes = bytes_of(model);
  bytes[bytes.size() - 3] ^= 1;
  write_file(model, bytes, ExitCode::input);
  expect_failure(test::run_motley(3, {"export", "--save-dir", first, "--out", out}), 4,
                 {"model.safetensors"});
  expect_failure(train(3, "short", "run", {"--init-from", first + "/latest", "--max-update", "1"}), 4,
                 {"model.safetensors"});
  expect_failure(test::run_motley(3, {"export", "--save-dir", (at / "nothing").string(), "--out", out}), 4,
                 {"there is no checkpoint in", "nothing"});

  fs::create_directory(at / "images");
  test::write_learnable_images(at / "images" / "train.h5", 20, 1);
  ASSERT_EQ(test::run_motley(1, {"train", "--data", (at / "images").string(), "--save-dir",
                                 (at / "mnist").string(), "--max-update", "1"})
                .job.exit_code,
            0);
  expect_failure(train(3, "short", "run",
                       {"--init-from", (at / "mnist").string(), "--config-file",
                        (at / "config.json").string(), "--max-update", "1"}),
                 4, {"a checkpoint of task mnist"});

  expect_failure(test::run_motley(2, {"export", "--save-dir", first, "--out", out, "--dtype", "int8"}), 2,
                 {"--dtype is \"int8\""});
  expect_failure(test::run_motley(2, {"export", "--save-dir", first}), 2, {"--out is missing"});
  expect_failure(test::run_motley(2, {"import", "--from", first}), 2, {"--save-dir is missing"});
  const std::string run = (at / "imported").string();
  expect_failure(test::run_motley(2, {"import", "--from", first, "--save-dir", run, "--arch", "resnet8"}), 2,
                 {"--arch is for images; this is task bert"});
  expect_failure(test::run_motley(
                     2, {"import", "--from", (at / "mnist").string(), "--save-dir", run, "--task", "images"}),
                 4, {"a checkpoint of task mnist; expected task images"});
  expect_failure(test::run_motley(2, {"export", "--save-dir", first, "--out", first}), 2,
                 {"--out", "is there already"});
  EXPECT_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace motley
