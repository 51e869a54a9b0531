// Import and export against Hugging Face's own model and outputs and torch's casts (tests/golden/exchange.py).
#include "train/exchange.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "checkpoint/directory.h"
#include "models/bert.h"
#include "models/bert_batch.h"
#include "support/file_size_limit.h"
#include "support/golden.h"
#include "support/hf_directory.h"
#include "train/stored_model.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

// The network of a checkpoint, judged one sample at a time.
class Network {
 public:
  Network(const fs::path& checkpoint, std::int64_t seq)
      : backend_(make_cpu_backend(1)), bert_(read_bert_config(checkpoint / "config.json")) {
    const BertMemory memory{.samples = 1, .seq_length = seq, .masked = 1};
    bert_.allocate(*backend_, memory);
    batches_.reserve(*backend_, memory);
    const checkpoint::Reader reader(checkpoint);
    reader.read_model(entries_of(bert_.parameters, "", bert_.parameters.values().as<float>()));
    bert_.parameters.changed();
    sums_ = Buffer(*backend_, 8 * sizeof(double));
  }

  // The log-probabilities of `token` at `position` and of `next_sentence`.
  struct Judged {
    double token = 0, next_sentence = 0;
  };
  Judged judge(HostBertBatch sample, int position, int token, int next_sentence) {
    sample.masked_rows = {position};
    sample.masked_labels = {token};
    sample.next_sentence = {next_sentence};
    backend_->fill_zero(sums_.view(DType::f64, Shape{8}));
    const Pass pass{.backend = *backend_, .training = false};
    bert_.evaluate(pass, batches_.load(sample, false, 0), sums_.view(DType::f64, Shape{8}));
    double host[8];
    backend_->copy_to_host(host, sums_.data(), sizeof host);
    return {-host[0], -host[4]};
  }

 private:
  std::unique_ptr<Backend> backend_;
  Bert bert_;
  BertBatchMemory batches_;
  Buffer sums_;
};

std::vector<double> log_softmax(const double* logits, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += std::exp(logits[i]);
  std::vector<double> result;
  for (std::size_t i = 0; i < count; ++i) result.push_back(logits[i] - std::log(sum));
  return result;
}

HostBertBatch sample_of(const test::Golden& golden, std::size_t sample) {
  const auto ids = golden["ids"].values<std::int32_t>(), mask = golden["mask"].values<std::int32_t>(),
             types = golden["types"].values<std::int32_t>();
  const auto seq = static_cast<std::size_t>(golden["ids"].shape[1]);
  HostBertBatch batch;
  batch.clear(static_cast<std::int64_t>(seq));
  batch.n = 1;
  for (std::size_t i = sample * seq; i < (sample + 1) * seq; ++i) {
    batch.ids.push_back(ids[i]);
    batch.types.push_back(types[i]);
    batch.key_mask.push_back(static_cast<std::uint8_t>(mask[i]));
  }
  return batch;
}

class Exchange : public testing::Test {
 protected:
  fs::path import(const fs::path& from) {
    return import_model({.from = from.string(), .save_dir = saved.string()});
  }
  void export_as(DType dtype, const std::string& name) {
    export_model(
        {.save_dir = saved.string(), .restore_file = "", .out = (at / name).string(), .dtype = dtype});
  }
  // Code and sentence of what must fail.
  std::string failure_of(const std::function<void()>& work, ExitCode code) {
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing failed";
    return {};
  }

  test::TemporaryDirectory directory;
  fs::path at = directory.path(), saved = at / "run";
};

TEST_F(Exchange, an_imported_network_computes_what_hugging_face_computes) {
  const test::Golden golden("exchange.safetensors");
  const auto tokens = static_cast<std::size_t>(golden["prediction_logits"].shape[2]);
  const std::int64_t seq = golden["ids"].shape[1];
  const auto predictions = golden["prediction_logits"].values<double>();
  const auto following = golden["nsp_logits"].values<double>();
  Network network(import(test::golden_directory()), seq);
  double worst = 0, smallest = 0;
  for (std::size_t sample = 0; sample < 3; ++sample) {
    const HostBertBatch batch = sample_of(golden, sample);
    const std::vector<double> next = log_softmax(&following[2 * sample], 2);
    for (std::size_t position = 0; position < static_cast<std::size_t>(seq); ++position) {
      const std::size_t row = sample * static_cast<std::size_t>(seq) + position;
      const std::vector<double> expected = log_softmax(&predictions[row * tokens], tokens);
      for (std::size_t token = 0; token < tokens; ++token) {
        const int label = static_cast<int>(token % 2);
        const Network::Judged found =
            network.judge(batch, static_cast<int>(position), static_cast<int>(token), label);
        worst = std::max({worst, std::abs(found.token - expected[token]),
                          std::abs(found.next_sentence - next[static_cast<std::size_t>(label)])});
        smallest = std::min(smallest, expected[token]);
      }
    }
  }
  EXPECT_LT(worst, 1e-5);
  EXPECT_LT(smallest, -4) << "outputs that are all alike would prove nothing";
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(Exchange, what_was_imported_is_exported_byte_for_byte) {
  import(test::golden_directory());
  export_as(DType::f32, "out");
  EXPECT_EQ(test::names_in(at / "out"), (std::vector<std::string>{"config.json", "model.safetensors",
                                                                  "tokenizer_config.json", "vocab.txt"}));
  test::OwnedTensors found = test::read_tensors(at / "out" / "model.safetensors");
  test::OwnedTensors expected = test::read_tensors(test::golden_directory() / "model.safetensors");
  ASSERT_EQ(found.size(), expected.size());
  for (const test::OwnedTensor& tensor : expected) {
    const test::OwnedTensor& other = test::named(found, tensor.name);
    EXPECT_EQ(other.dtype, tensor.dtype);
    EXPECT_EQ(other.shape, tensor.shape);
    EXPECT_EQ(other.bytes, tensor.bytes) << tensor.name;
  }
  const auto text = [](const fs::path& path) { return read_file(path, ExitCode::input); };
  EXPECT_EQ(text(at / "out" / "vocab.txt"), text(test::golden_directory() / "vocab.txt"));
  const auto config = nlohmann::json::parse(text(at / "out" / "config.json")),
             original = nlohmann::json::parse(text(test::golden_directory() / "config.json"));
  for (const auto& [key, value] : config.items()) {
    EXPECT_EQ(value, original.at(key == "torch_dtype" ? "dtype" : key)) << key;
  }
}

class Rounded : public Exchange, public testing::WithParamInterface<std::pair<DType, const char*>> {};

TEST_P(Rounded, exports_are_what_torch_casts_to) {
  const auto [dtype, name] = GetParam();
  const test::Golden golden("exchange.safetensors");
  import(test::golden_directory());
  export_as(dtype, "out");
  for (const test::OwnedTensor& tensor : test::read_tensors(at / "out" / "model.safetensors")) {
    const test::GoldenTensor& expected = golden[std::string(name) + "/" + tensor.name];
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(tensor.shape, expected.shape);
    ASSERT_EQ(tensor.bytes.size(), expected.bytes.size());
    EXPECT_EQ(std::memcmp(tensor.bytes.data(), expected.bytes.data(), expected.bytes.size()), 0)
        << tensor.name;
  }
  const auto config = nlohmann::json::parse(read_file(at / "out" / "config.json", ExitCode::input));
  EXPECT_EQ(config["torch_dtype"], name_of(dtype));

  // And back: what they were rounded to is what a network then has.
  const fs::path again = import_model({.from = (at / "out").string(), .save_dir = (at / "again").string()});
  for (const test::OwnedTensor& tensor : test::read_tensors(again / "model.safetensors")) {
    EXPECT_EQ(tensor.dtype, DType::f32);
  }
  export_model({.save_dir = (at / "again").string(),
                .restore_file = "",
                .out = (at / "out2").string(),
                .dtype = dtype});
  EXPECT_EQ(read_file(at / "out" / "model.safetensors", ExitCode::input),
            read_file(at / "out2" / "model.safetensors", ExitCode::input));
}

INSTANTIATE_TEST_SUITE_P(All, Rounded,
                         testing::Values(std::pair{DType::f16, "fp16"}, std::pair{DType::bf16, "bf16"}),
                         [](const auto& tested) { return std::string(tested.param.second); });

TEST_F(Exchange, numbers_that_float16_cannot_hold_are_listed_by_tensor_and_nothing_is_left) {
  test::write_hf_directory(at / "hf", [](test::OwnedTensors& tensors) {
    std::vector<float> bias(2, 65520.0f), words(12, 0.5f);
    words[3] = -1e6f;
    test::named(tensors, "cls.seq_relationship.bias") =
        test::OwnedTensor::of("cls.seq_relationship.bias", Shape{2}, bias);
    test::named(tensors, "cls.predictions.bias") =
        test::OwnedTensor::of("cls.predictions.bias", Shape{12}, words);
  });
  import(at / "hf");
  const std::string sentence = failure_of([&] { export_as(DType::f16, "out"); }, ExitCode::usage);
  EXPECT_EQ(
      sentence,
      "numbers of this model are too large for float16: cls.seq_relationship.bias (2 of them, up to 65520), "
      "cls.predictions.bias (1 of them, up to 1000000); expected another --dtype");
  EXPECT_EQ(test::names_in(at), (std::vector<std::string>{"hf", "run"}));
  export_as(DType::bf16, "out");
  EXPECT_TRUE(fs::exists(at / "out" / "model.safetensors"));
}

TEST_F(Exchange, numbers_that_are_not_finite_are_refused_by_tensor) {
  test::write_hf_directory(at / "hf", [](test::OwnedTensors& tensors) {
    std::vector<float> words(12, 0.5f);
    words[4] = INFINITY;
    test::named(tensors, "cls.predictions.bias") =
        test::OwnedTensor::of("cls.predictions.bias", Shape{12}, words);
  });
  EXPECT_EQ(failure_of([&] { import(at / "hf"); }, ExitCode::input),
            (at / "hf").string() +
                ": numbers that are not finite in cls.predictions.bias; expected finite parameters");
}

TEST_F(Exchange, a_full_disk_leaves_nothing) {
  {
    const test::FileSizeLimit limit(16384);  // less than the parameters
    EXPECT_NE(
        failure_of([&] { import(test::golden_directory()); }, ExitCode::checkpoint).find("model.safetensors"),
        std::string::npos);
  }
  EXPECT_EQ(test::names_in(at), std::vector<std::string>{});
  import(test::golden_directory());
  {
    const test::FileSizeLimit limit(16384);
    EXPECT_NE(
        failure_of([&] { export_as(DType::f32, "out"); }, ExitCode::checkpoint).find("model.safetensors"),
        std::string::npos);
  }
  EXPECT_EQ(test::names_in(at), std::vector<std::string>{"run"});
}

TEST_F(Exchange, an_output_that_is_there_is_not_touched) {
  import(test::golden_directory());
  fs::create_directory(at / "out");
  write_file(at / "out" / "note", "mine", ExitCode::input);
  EXPECT_NE(failure_of([&] { export_as(DType::f32, "out"); }, ExitCode::usage).find("--out"),
            std::string::npos);
  EXPECT_NE(failure_of([&] { export_as(DType::f32, "out/note"); }, ExitCode::usage).find("--out"),
            std::string::npos);
  EXPECT_EQ(test::names_in(at / "out"), std::vector<std::string>{"note"});
  fs::remove(at / "out" / "note");
  export_as(DType::f32, "out/");  // empty now
  export_as(DType::f32, "new/and/deep");
  EXPECT_EQ(test::names_in(at / "new" / "and" / "deep").size(), 4u);
  EXPECT_EQ(test::names_in(at), (std::vector<std::string>{"new", "out", "run"}));
}

TEST_F(Exchange, a_run_that_has_checkpoints_is_not_imported_into) {
  const fs::path first = import(test::golden_directory());
  EXPECT_EQ(first, saved / "step-00000000");
  EXPECT_NE(failure_of([&] { import(test::golden_directory()); }, ExitCode::usage).find("--save-dir"),
            std::string::npos);
  // A checkpoint, or a run, can be imported elsewhere.
  for (const fs::path& from : {first, saved}) {
    const fs::path other =
        import_model({.from = from.string(), .save_dir = (at / from.filename() / "b").string()});
    EXPECT_EQ(read_file(other / "model.safetensors", ExitCode::input),
              read_file(first / "model.safetensors", ExitCode::input));
    fs::remove_all(at / from.filename() / "b");
  }
}

TEST_F(Exchange, a_damaged_checkpoint_is_not_exported_nor_imported) {
  const fs::path checkpoint = import(test::golden_directory());
  std::string bytes = read_file(checkpoint / "model.safetensors", ExitCode::input);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(checkpoint / "model.safetensors", bytes, ExitCode::input);
  EXPECT_NE(failure_of([&] { export_as(DType::f32, "out"); }, ExitCode::checkpoint).find("model.safetensors"),
            std::string::npos);
  failure_of([&] { import_model({.from = checkpoint.string(), .save_dir = (at / "b").string()}); },
             ExitCode::checkpoint);
  EXPECT_EQ(test::names_in(at), std::vector<std::string>{"run"});
}

TEST_F(Exchange, heads_that_are_absent_begin_as_in_a_new_network_of_the_seed) {
  test::write_hf_directory(at / "hf",
                           [](test::OwnedTensors& tensors) { test::remove_prefix(tensors, "cls."); });
  const auto import_seeded = [&](const char* name, std::uint64_t seed) {
    return test::read_tensors(
        import_model({.from = (at / "hf").string(), .save_dir = (at / name).string(), .seed = seed}) /
        "model.safetensors");
  };
  test::OwnedTensors a = import_seeded("a", 1), b = import_seeded("b", 2), again = import_seeded("c", 1);
  for (const test::OwnedTensor& tensor : a) {
    EXPECT_EQ(tensor.bytes, test::named(again, tensor.name).bytes);
    const bool drawn = tensor.name == "cls.seq_relationship.weight" ||
                       tensor.name == "cls.predictions.transform.dense.weight";
    EXPECT_EQ(tensor.bytes != test::named(b, tensor.name).bytes, drawn) << tensor.name;
  }
  test::OwnedTensors golden = test::read_tensors(test::golden_directory() / "model.safetensors");
  EXPECT_EQ(test::named(a, "bert.pooler.dense.bias").bytes,
            test::named(golden, "bert.pooler.dense.bias").bytes);
}

TEST_F(Exchange, a_tokenizer_config_is_kept_and_else_made_only_where_the_vocabulary_has_capitals) {
  const std::string kept = "{\"do_lower_case\": true, \"strip_accents\": false}\n";
  test::write_hf_directory(at / "kept", [](test::OwnedTensors&) {});
  write_file(at / "kept" / "tokenizer_config.json", kept, ExitCode::input);
  test::write_hf_directory(at / "lower", [](test::OwnedTensors&) {});
  std::string words = read_file(at / "lower" / "vocab.txt", ExitCode::input);
  words.replace(words.find("Tower"), 5, "tower").replace(words.find("Babel"), 5, "babel");
  write_file(at / "lower" / "vocab.txt", words, ExitCode::input);
  const auto config_of = [&](const fs::path& from) {
    const fs::path run = at / ("run-" + from.filename().string());
    return import_model({.from = from.string(), .save_dir = run.string()}) / "tokenizer_config.json";
  };
  EXPECT_EQ(read_file(config_of(at / "kept"), ExitCode::input), kept);
  EXPECT_FALSE(fs::exists(config_of(at / "lower")));
  const auto made = nlohmann::json::parse(read_file(config_of(test::golden_directory()), ExitCode::input));
  EXPECT_EQ(made["do_lower_case"], false);
}

}  // namespace
}  // namespace motley::train
