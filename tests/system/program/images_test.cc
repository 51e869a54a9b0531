// Image sets other than MNIST, as a person uses them: made, trained on, judged; and what is wrong with them.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "support/expect_failure.h"
#include "support/metrics.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::expect_failure;
using Words = std::vector<std::string>;

class Images : public ::testing::Test {
 protected:
  Images() { fs::create_directory(data); }

  std::string file(const char* name) const { return (data / name).string(); }

  test::MpiRun synth(const char* name, const Words& more = {}) const {
    Words arguments = {"data", "synth", "--out", file(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(1, arguments);
  }
  test::MpiRun train(int ranks, const std::string& task, const Words& more) const {
    Words arguments = {"train", "--task", task, "--data", data.string(), "--save-dir", saved.string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(ranks, arguments);
  }
  // Files of CIFAR-10's form under their published names; class k is an image of brightness 20 k, and noise.
  void write_cifar(const fs::path& published, int records, int label_of_last = -1) const {
    fs::create_directories(published);
    for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                             "data_batch_5.bin", "test_batch.bin"}) {
      std::string bytes;
      for (int r = 0; r < records; ++r) {
        const int label = r + 1 == records && label_of_last >= 0 ? label_of_last : r % 10;
        bytes += static_cast<char>(label);
        for (int i = 0; i < 3072; ++i) bytes += static_cast<char>(20 * label + (r * 131 + i * 71) % 53);
      }
      write_file(published / name, bytes, ExitCode::input);
    }
  }
  void expect_only(const std::vector<std::string>& names) const {
    for (const auto& entry : fs::directory_iterator(data))
      EXPECT_NE(std::find(names.begin(), names.end(), entry.path().filename().string()), names.end())
          << entry.path();
  }

  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data", saved = directory.path() / "run";
};

TEST_F(Images, made_up_classes_are_learned_by_unequal_ranks_and_judged_by_what_the_checkpoint_says) {
  ASSERT_EQ(synth("train.h5", {"--samples", "1600", "--height", "24", "--width", "20", "--channels", "2",
                               "--classes", "8"})
                .job.exit_code,
            0);
  ASSERT_EQ(synth("test.h5", {"--samples", "400", "--height", "24", "--width", "20", "--channels", "2",
                              "--classes", "8", "--seed", "2"})
                .job.exit_code,
            0);
  const test::MpiRun run = train(
      3, "images",
      {"--arch", "lenet", "--valid-subset", "test", "--max-epoch", "6", "--global-batch", "32", "--lr",
       "0.02", "--policy", "static", "--weights", "1,2,5", "--crop-padding", "2", "--log-interval", "50"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(run.job.err.find("8 classes"), std::string::npos) << run.job.err;
  const std::vector<Json> lines = test::metrics_of(saved);
  const Json* best = nullptr;
  for (const Json& line : lines) {
    if (!line.contains("valid")) {
      EXPECT_TRUE(line.contains("top5"));
      continue;
    }
    EXPECT_GE(line["top5"].get<double>(), line["accuracy"].get<double>());
    if (best == nullptr || line["accuracy"] > (*best)["accuracy"]) best = &line;
  }
  ASSERT_NE(best, nullptr);
  EXPECT_GT((*best)["accuracy"].get<double>(), 0.8);
  EXPECT_NEAR(lines.front()["lr"].get<double>(), 0.02, 1e-9) << "the first epoch of a cosine";
  double last_lr = 1;
  for (const Json& line : lines) last_lr = line.contains("lr") ? line["lr"].get<double>() : last_lr;
  EXPECT_NEAR(last_lr, 0.02 * (1 + std::cos(3.14159265358979 * 5 / 6)) / 2, 1e-9)
      << "the sixth of six epochs";

  // The most accurate model is kept, by default.
  const Json config = Json::parse(read_file(saved / "best" / "config.json", ExitCode::input));
  EXPECT_EQ(config["arch"], "lenet");
  EXPECT_EQ(config["input"], (std::vector<int>{24, 20, 2}));
  EXPECT_EQ(config["classes"], 8);
  EXPECT_EQ(config["mean"].size(), 2U);
  const test::MpiRun judged =
      test::run_motley(2, {"eval", "--task", "images", "--data", data.string(), "--valid-subset", "test",
                           "--save-dir", saved.string(), "--restore-file", "best", "--log-format", "json"});
  ASSERT_EQ(judged.job.exit_code, 0) << judged.job.err;
  const Json result = Json::parse(judged.job.out);
  EXPECT_EQ(result["step"], (*best)["step"]);
  EXPECT_EQ(result["accuracy"], (*best)["accuracy"]);
  EXPECT_EQ(result["top5"], (*best)["top5"]);
  EXPECT_NEAR(result["loss"].get<double>(), (*best)["loss"].get<double>(), 1e-5);
}

TEST_F(Images, are_trained_on_in_bfloat16_and_judged_in_either_type) {
  for (const char* name : {"train.h5", "test.h5"})
    ASSERT_EQ(synth(name, {"--samples", "120", "--height", "16", "--width", "16"}).job.exit_code, 0);
  const test::MpiRun run = train(2, "images",
                                 {"--arch", "shufflenetv2_0.5", "--precision", "bf16", "--valid-subset",
                                  "test", "--global-batch", "20", "--max-epoch", "1", "--lr", "0.01"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(read_file(saved / "config.ini", ExitCode::input).find("\nprecision = bf16\n"), std::string::npos);
  // What is stored is the float32 arena.
  const std::string model = read_file(saved / "latest" / "model.safetensors", ExitCode::input);
  EXPECT_NE(model.find("\"F32\""), std::string::npos);
  EXPECT_EQ(model.find("\"BF16\""), std::string::npos);
  Json valid;
  for (const Json& line : test::metrics_of(saved))
    if (line.contains("valid")) valid = line;
  const auto loss = [&](const char* precision) {
    const test::MpiRun judged =
        test::run_motley(2, {"eval", "--task", "images", "--data", data.string(), "--valid-subset", "test",
                             "--save-dir", saved.string(), "--precision", precision, "--log-format", "json"});
    EXPECT_EQ(judged.job.exit_code, 0) << judged.job.err;
    return Json::parse(judged.job.out)["loss"].get<double>();
  };
  const double while_training = valid["loss"].get<double>(), bf16 = loss("bf16"), fp32 = loss("fp32");
  EXPECT_NEAR(bf16, while_training, 1e-6 * while_training);
  EXPECT_NEAR(fp32, bf16, 1e-2 * bf16);
  EXPECT_NE(fp32, bf16);
}

TEST_F(Images, cifar_is_converted_and_trained_on_by_its_recipe) {
  const fs::path published = directory.path() / "cifar-10-batches-bin";
  write_cifar(published, 60);
  for (const char* subset : {"train", "test"}) {
    const test::MpiRun made =
        test::run_motley(2, {"data", "cifar", "--dir", published.string(), "--subset", subset, "--out",
                             (data / (std::string(subset) + ".h5")).string()});
    ASSERT_EQ(made.job.exit_code, 0) << made.job.err;
  }
  const test::MpiRun run =
      train(2, "cifar10",
            {"--arch", "lenet", "--valid-subset", "test", "--max-epoch", "2", "--max-sentences", "32"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_NE(run.job.err.find("300 training samples"), std::string::npos) << run.job.err;
  EXPECT_NE(run.job.err.find("global batch 256"), std::string::npos) << run.job.err;
  const std::string config = read_file(saved / "config.ini", ExitCode::input);
  for (const char* line :
       {"nesterov = true", "momentum = 0.9", "weight-decay = 0.0005", "lr-scheduler = cosine", "lr = 0.1",
        "lr-epochs = 2", "crop-padding = 4", "flip = true", "best-checkpoint-metric = accuracy"})
    EXPECT_NE(config.find(std::string("\n") + line + "\n"), std::string::npos) << line << " in\n" << config;
  // A run that continues from config.ini is the same run.
  const test::MpiRun again = test::run_motley(2, {"train", "--config", (saved / "config.ini").string()});
  EXPECT_EQ(again.job.exit_code, 0) << again.job.err;
  EXPECT_NE(again.job.err.find("nothing is left to do"), std::string::npos) << again.job.err;
  EXPECT_EQ(again.job.err.find("is not the same"), std::string::npos) << again.job.err;
}

TEST_F(Images, what_is_wrong_with_files_of_cifar_gets_a_sentence_and_leaves_nothing) {
  const fs::path published = directory.path() / "batches";
  const auto convert = [&](const Words& more) {
    Words arguments = {"data", "cifar", "--out", file("train.h5")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(2, arguments);
  };
  write_cifar(published, 3, 11);
  expect_failure(convert({"--dir", published.string()}), 3,
                 {"data_batch_1.bin", "record 2", "label 11", "0 to 9"});
  write_file(published / "data_batch_4.bin", std::string(5000, 'x'), ExitCode::input);
  expect_failure(convert({"--dir", published.string()}), 3, {"data_batch_4.bin has 5000 bytes", "3073"});
  expect_failure(convert({"--data", (published / "data_batch_4.bin").string()}), 3,
                 {"data_batch_4.bin", "3073", "3074"});
  fs::remove(published / "data_batch_4.bin");
  expect_failure(convert({"--dir", published.string()}), 3, {"data_batch_4.bin"});
  expect_failure(convert({"--dir", data.string()}), 3, {"has no files of CIFAR", "train.bin"});
  expect_failure(convert({}), 2, {"--data", "--dir"});
  expect_failure(convert({"--dir", published.string(), "--subset", "valid"}), 2, {"valid", "train or test"});
  expect_only({});
}

TEST_F(Images, what_is_wrong_with_image_sets_and_networks_gets_a_sentence) {
  const auto run = [&](const std::string& task, const Words& more) {
    Words all = {"--max-update", "2"};
    all.insert(all.end(), more.begin(), more.end());
    return train(3, task, all);
  };
  ASSERT_EQ(synth("train.h5", {"--samples", "40", "--classes", "12"}).job.exit_code, 0);
  expect_failure(run("images", {"--arch", "lenett"}), 2,
                 {"lenett", "did you mean \"lenet\"?", "--help-archs"});
  // Labels beyond the classes: of the task, and as told.
  expect_failure(run("cifar10", {}), 3, {file("train.h5"), "row", "label 1", "expected 0 to 9"});
  expect_failure(run("images", {"--classes", "5"}), 3, {file("train.h5"), "row", "expected 0 to 4"});
  expect_failure(run("mnist", {}), 3, {"train.h5", "[32, 32, 3]", "[28, 28, 1]"});
  expect_failure(run("images", {"--mean", "0.5", "--deviation", "0.2"}), 2, {"--mean", "3 channel(s)"});
  expect_failure(run("images", {"--crop-padding", "32"}), 2, {"--crop-padding is 32", "32 x 32"});
  expect_failure(run("bert", {"--flip"}), 2, {"--flip is for images"});
  ASSERT_EQ(synth("train.h5", {"--samples", "40", "--height", "15"}).job.exit_code, 0);
  expect_failure(run("images", {"--arch", "lenet"}), 3, {"train.h5", "15 x 32", "lenet", "16 x 16"});
  // Validation images that are others than those of training.
  ASSERT_EQ(synth("train.h5", {"--samples", "40"}).job.exit_code, 0);
  ASSERT_EQ(synth("test.h5", {"--samples", "40", "--channels", "1"}).job.exit_code, 0);
  expect_failure(run("images", {"--valid-subset", "test"}), 3, {"test.h5", "[32, 32, 1]", "[32, 32, 3]"});
  EXPECT_FALSE(fs::exists(saved));
}

TEST_F(Images, a_share_that_batch_norm_needs_at_once_and_that_does_not_fit_gets_a_sentence) {
  ASSERT_EQ(synth("train.h5", {"--samples", "24"}).job.exit_code, 0);
  const auto run = [&](const Words& more) {
    Words words = {"--arch", "shufflenetv2_0.5", "--global-batch", "12", "--max-update", "3"};
    words.insert(words.end(), more.begin(), more.end());
    return train(2, "images", words);
  };
  expect_failure(run({"--max-sentences", "5"}), 2,
                 {"--max-sentences 5 only 10 of its 12 samples fit", "5, 5 by rank",
                  "--global-batch of at most 10", "--no-sync-bn"});
  expect_failure(run({"--memory-limit", "0:8M,1:8M"}), 6,
                 {"in the memory of the ranks only", "of its 12 samples fit", "--global-batch of at most",
                  "--no-sync-bn"});
  EXPECT_FALSE(fs::exists(saved));
  // In mid-run, where the sums of other ranks are under way.
  const test::MpiRun late = run({"--memory-limit", "1:6M@2"});
  EXPECT_EQ(late.job.exit_code, 6) << late.job.err;
  EXPECT_NE(late.job.err.find("out of memory"), std::string::npos) << late.job.err;
  fs::remove_all(saved);
  const test::MpiRun apart = run({"--max-sentences", "5", "--no-sync-bn"});
  EXPECT_EQ(apart.job.exit_code, 0) << apart.job.err;
  const std::string config = read_file(saved / "config.ini", ExitCode::input);
  EXPECT_NE(config.find("\nsync-bn = false\n"), std::string::npos) << config;
}

TEST_F(Images, the_network_is_resnet18_unless_told) {
  ASSERT_EQ(synth("train.h5", {"--samples", "12", "--height", "16", "--width", "16"}).job.exit_code, 0);
  const test::MpiRun run = train(2, "images", {"--global-batch", "6", "--max-update", "1"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Json config = Json::parse(read_file(saved / "latest" / "config.json", ExitCode::input));
  EXPECT_EQ(config["arch"], "resnet18");
}

TEST_F(Images, probe_measures_networks_with_batch_norm_down_to_a_single_sample) {
  ASSERT_EQ(synth("train.h5", {"--samples", "12", "--height", "16", "--width", "16"}).job.exit_code, 0);
  const std::string cluster = (directory.path() / "cluster.json").string();
  const test::MpiRun probe =
      test::run_motley(2, {"probe", "--task", "images", "--arch", "efficientnet_b0", "--data", data.string(),
                           "--max-sentences", "4", "--seconds", "0.1", "--out", cluster});
  ASSERT_EQ(probe.job.exit_code, 0) << probe.job.err;
  const Json found = Json::parse(read_file(cluster, ExitCode::input));
  ASSERT_EQ(found["ranks"].size(), 2U);
  for (const Json& rank : found["ranks"]) {
    ASSERT_EQ(rank["measured"]["micro_batches"].size(), 3U);
    EXPECT_EQ(rank["measured"]["micro_batches"][0]["n"], 1) << "whose last images are a single pixel";
    EXPECT_GT(rank["measured"]["micro_batches"][0]["seconds"].get<double>(), 0);
  }
}

TEST_F(Images, what_cannot_be_normalised_over_a_batch_gets_a_sentence) {
  ASSERT_EQ(synth("train.h5", {"--samples", "9", "--height", "16", "--width", "16"}).job.exit_code, 0);
  const auto run = [&](const Words& more) {
    Words words = {"--arch", "efficientnet_b0", "--global-batch", "4", "--max-epoch", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return train(2, "images", words);
  };
  expect_failure(run({"--sync-bn", "--local-steps", "2"}), 2,
                 {"--sync-bn and --local-steps 2 contradict each other"});
  expect_failure(run({"--sync-bn", "--policy", "edp"}), 2,
                 {"--sync-bn and --policy edp contradict each other"});
  // The last batch has a single sample, and the last images a single pixel.
  const test::MpiRun one = run({});
  EXPECT_EQ(one.job.exit_code, 2) << one.job.err;
  EXPECT_NE(one.job.err.find(
                "batch norm needs more than one value per channel; the batch of step 3 has one sample"),
            std::string::npos)
      << one.job.err;
}

TEST_F(Images, a_run_that_continues_keeps_its_network_and_its_normalisation) {
  ASSERT_EQ(synth("train.h5", {"--samples", "60", "--height", "28", "--width", "28", "--channels", "1"})
                .job.exit_code,
            0);
  const Words first = {"--arch", "mnist",          "--mean", "0.4",         "--deviation",
                       "0.3",    "--global-batch", "20",     "--max-update"};
  Words one = first, two = {"--global-batch", "20", "--max-update", "3", "--allow-changed-options"};
  one.push_back("2");
  ASSERT_EQ(train(2, "images", one).job.exit_code, 0);
  // The cosine ends elsewhere, which has to be allowed.
  const test::MpiRun continued = train(2, "images", two);
  ASSERT_EQ(continued.job.exit_code, 0) << continued.job.err;
  const Json config = Json::parse(read_file(saved / "latest" / "config.json", ExitCode::input));
  EXPECT_EQ(config["arch"], "mnist");
  EXPECT_EQ(config["mean"], std::vector<double>{0.4});
  // Another network does not fit, and is said.
  two.insert(two.end(), {"--arch", "lenet"});
  const test::MpiRun other = train(2, "images", two);
  EXPECT_EQ(other.job.exit_code, 4) << other.job.err;
  EXPECT_NE(other.job.err.find("conv1.weight"), std::string::npos) << other.job.err;
}

TEST_F(Images, a_set_that_another_program_made_is_described_by_what_is_in_it) {
  const hid_t made = H5Fcreate(file("train.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t shape[] = {30, 16, 16, 3};
  const auto put = [&](const char* name, int rank, hid_t type, const void* bytes) {
    const hid_t space = H5Screate_simple(rank, shape, nullptr);
    const hid_t set = H5Dcreate2(made, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes);
    H5Dclose(set);
    H5Sclose(space);
  };
  std::vector<std::uint8_t> pixels(30 * 16 * 16 * 3);
  for (std::size_t i = 0; i < pixels.size(); ++i)
    pixels[i] = static_cast<std::uint8_t>(i % 3 == 0 ? 51 : i % 2 == 0 ? 0 : 255);
  std::vector<std::int64_t> labels(30, 2);
  labels[4] = 6;
  put("images", 4, H5T_NATIVE_UINT8, pixels.data());
  put("labels", 1, H5T_NATIVE_INT64, labels.data());
  H5Fclose(made);
  const test::MpiRun run =
      train(2, "images", {"--arch", "lenet", "--max-update", "1", "--global-batch", "10"});
  ASSERT_EQ(run.job.exit_code, 0) << run.job.err;
  const Json config = Json::parse(read_file(saved / "latest" / "config.json", ExitCode::input));
  EXPECT_EQ(config["classes"], 7);
  EXPECT_NEAR(config["mean"][0].get<double>(), 0.2, 1e-12);
  EXPECT_EQ(config["deviation"][0], 1) << "all the same";
  EXPECT_NEAR(config["mean"][1].get<double>(), 0.5, 1e-12);
  EXPECT_NEAR(config["deviation"][2].get<double>(), 0.5, 1e-12);
}

TEST_F(Images, the_networks_are_listed_with_their_sizes_for_the_images_at_hand) {
  const auto list = [&](const Words& more) {
    Words words = {test::motley_program(), "train", "--help-archs"};
    words.insert(words.end(), more.begin(), more.end());
    const test::Finished finished = test::run_program(words);
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    return finished.out;
  };
  const std::string all = list({});
  EXPECT_NE(all.find("1199882"), std::string::npos) << all;
  EXPECT_NE(all.find("62006"), std::string::npos) << all;
  EXPECT_NE(all.find("0.7"), std::string::npos) << all;
  EXPECT_NE(list({"--task", "cifar100"}).find("69656"), std::string::npos) << "62006 + 90 x 85";
  ASSERT_EQ(synth("train.h5", {"--samples", "4", "--height", "10", "--width", "12", "--classes", "3"})
                .job.exit_code,
            0);
  const std::string small = list({"--data", data.string()});
  EXPECT_NE(small.find("too small: needs 16 x 16"), std::string::npos) << small;
  EXPECT_NE(small.find("10 x 12 x 3"), std::string::npos) << small;
  const test::Finished wrong =
      test::run_program({test::motley_program(), "train", "--help-archs", "--tsk", "mnist"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("--task"), std::string::npos) << wrong.err;
}

}  // namespace
}  // namespace motley
