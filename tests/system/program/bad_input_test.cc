// Law 8: what is wrong gets one sentence, the documented exit code on every rank, and leaves nothing behind.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <algorithm>
#include <filesystem>

#include "core/files.h"
#include "support/expect_failure.h"
#include "support/paths.h"
#include "support/subprocess.h"

namespace motley {
namespace {

using test::expect_failure;

namespace fs = std::filesystem;

// An image set with whatever is wrong with it.
struct Wrong {
  std::string images = "images", labels = "labels";
  hsize_t n_images = 20, n_labels = 20, size = 28;
  std::uint8_t label = 3;
};

void write_h5(const fs::path& path, const Wrong& wrong) {
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hsize_t image_shape[] = {wrong.n_images, wrong.size, wrong.size, 1}, label_shape[] = {wrong.n_labels};
  const std::vector<std::uint8_t> pixels(wrong.n_images * wrong.size * wrong.size, 9);
  std::vector<std::uint8_t> labels(wrong.n_labels, 3);
  if (wrong.n_labels > 7) labels[7] = wrong.label;
  const auto put = [&](const std::string& name, int rank, const hsize_t* shape, const void* data) {
    const hid_t space = H5Screate_simple(rank, shape, nullptr);
    const hid_t set =
        H5Dcreate(file, name.c_str(), H5T_NATIVE_UINT8, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Dclose(set);
    H5Sclose(space);
  };
  put(wrong.images, 4, image_shape, pixels.data());
  put(wrong.labels, 1, label_shape, labels.data());
  H5Fclose(file);
}

class BadInput : public ::testing::Test {
 protected:
  test::MpiRun train(int ranks, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {
        "train",        "--task", "mnist",          "--data", data.string(), "--save-dir", saved.string(),
        "--max-update", "2",      "--global-batch", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::run_motley(ranks, arguments);
  }

  void expect_nothing_left() {
    EXPECT_FALSE(fs::exists(saved)) << "a run that could not start left its directory";
  }

  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data";
  fs::path saved = directory.path() / "run";
  BadInput() { fs::create_directory(data); }
};

TEST_F(BadInput, missing_file) {
  expect_failure(train(3), 3, {(data / "train.h5").string()});
  expect_nothing_left();
}

TEST_F(BadInput, missing_directory) {
  expect_failure(train(2, {"--train-subset", "x"}), 3, {"x.h5"});
  expect_failure(
      test::run_motley(2, {"train", "--data", "/nowhere", "--max-epoch", "1", "--save-dir", saved.string()}),
      3, {"--data /nowhere does not exist"});
  expect_nothing_left();
}

TEST_F(BadInput, not_hdf5) {
  write_file(data / "train.h5", "this is a text file\n", ExitCode::input);
  expect_failure(train(3), 3, {"train.h5", "HDF5"});
  expect_nothing_left();
}

TEST_F(BadInput, wrong_data_set_name) {
  write_h5(data / "train.h5", {.images = "pictures"});
  expect_failure(train(3), 3, {"train.h5", "images", "pictures"});
  expect_nothing_left();
}

TEST_F(BadInput, different_lengths) {
  write_h5(data / "train.h5", {.n_labels = 19});
  expect_failure(train(3), 3, {"train.h5", "20", "19"});
  expect_nothing_left();
}

TEST_F(BadInput, label_out_of_range) {
  write_h5(data / "train.h5", {.label = 10});
  expect_failure(train(3), 3, {"train.h5", "row 7", "10"});
  expect_nothing_left();
}

TEST_F(BadInput, wrong_image_size) {
  write_h5(data / "train.h5", {.size = 32});
  expect_failure(train(2), 3, {"train.h5", "[32, 32, 1]", "[28, 28, 1]"});
  expect_nothing_left();
}

TEST_F(BadInput, empty_data_set) {
  write_h5(data / "train.h5", {.n_images = 0, .n_labels = 0});
  expect_failure(train(3), 3, {"train.h5", "empty"});
  expect_nothing_left();
}

TEST_F(BadInput, a_named_validation_set_must_be_there_and_right) {
  write_h5(data / "train.h5", {});
  expect_failure(train(2, {"--valid-subset", "test"}), 3, {"test.h5"});
  write_h5(data / "test.h5", {.label = 77});
  expect_failure(train(2, {"--valid-subset", "test"}), 3, {"test.h5", "77"});
  expect_nothing_left();
}

TEST_F(BadInput, fewer_samples_than_ranks_trains) {
  write_h5(data / "train.h5", {.n_images = 2, .n_labels = 2, .label = 3});
  const test::MpiRun run = train(4);
  EXPECT_EQ(run.job.exit_code, 0) << run.job.err;
  EXPECT_TRUE(fs::exists(saved / "latest" / "MANIFEST.json"));
}

TEST_F(BadInput, truncated_idx) {
  const auto big_endian = [](std::uint32_t value) {
    return std::string{static_cast<char>(value >> 24), static_cast<char>(value >> 16),
                       static_cast<char>(value >> 8), static_cast<char>(value)};
  };
  const std::string images =
      big_endian(0x803) + big_endian(3) + big_endian(28) + big_endian(28) + std::string(784 * 2, 'x');
  const std::string labels = big_endian(0x801) + big_endian(3) + std::string(3, '\1');
  write_file(data / "images", images, ExitCode::input);
  write_file(data / "labels", labels, ExitCode::input);
  const fs::path out = data / "out.h5";
  expect_failure(test::run_motley(2, {"data", "idx", "--images", (data / "images").string(), "--labels",
                                      (data / "labels").string(), "--out", out.string()}),
                 3, {"images"});
  for (const auto& entry : fs::directory_iterator(data)) {
    EXPECT_TRUE(entry.path().filename() == "images" || entry.path().filename() == "labels") << entry.path();
  }
}

TEST_F(BadInput, options) {
  write_h5(data / "train.h5", {});
  expect_failure(train(3, {"--globl-batch", "8"}), 2, {"--globl-batch", "--global-batch"});
  expect_failure(train(3, {"--policy", "static", "--weights", "1,2"}), 2, {"--weights", "2", "3"});
  expect_failure(train(3, {"--policy", "static", "--weights", "0,0,0"}), 2, {"--weights", "zero"});
  expect_failure(train(2, {"--max-sentences", "-4"}), 2, {"--max-sentences", "-4"});
  expect_failure(
      test::run_motley(2, {"train", "--data", data.string(), "--max-epoch", "1", "--global-batch", "-8"}), 2,
      {"--global-batch is -8"});
  expect_failure(train(2, {"--slow", "5:3x"}), 2, {"--slow", "5"});
  expect_failure(train(2, {"--slow", "1:fast"}), 2, {"--slow", "fast"});
  expect_failure(train(2, {"--slow", "1:gamma(2)"}), 2, {"--slow", "gamma(2)"});
  expect_failure(train(2, {"--policy", "fair"}), 2, {"--policy", "fair", "auto"});
  expect_failure(train(2, {"--policy", "sync", "--weights", "1,2"}), 2, {"--weights", "sync"});
  expect_failure(train(2, {"--local-steps", "0"}), 2, {"--local-steps is 0"});
  expect_failure(train(2, {"--memory-limit", "7:1G"}), 2, {"--memory-limit", "7"});
  expect_failure(train(2, {"--memory-limit", "1:lots"}), 2, {"--memory-limit", "lots"});
  expect_failure(train(2, {"--best-checkpoint-metric", "f1"}), 2, {"f1", "accuracy"});
  expect_failure(train(2, {"--update-freq", "2"}), 2, {"--update-freq"});
  expect_failure(test::run_motley(2, {"trian"}), 2, {"trian", "train"});
  expect_failure(test::run_motley(2, {}), 2, {"no command"});
  expect_nothing_left();
}

TEST_F(BadInput, options_of_training_that_an_evaluation_has_no_use_for) {
  write_h5(data / "train.h5", {});
  const auto eval = [&](const char* option, const char* value) {
    return test::run_motley(2, {"eval", "--data", data.string(), "--valid-subset", "train", "--save-dir",
                                saved.string(), option, value});
  };
  for (const char* policy : {"dp", "edp"})
    expect_failure(eval("--policy", policy), 2, {"--policy", policy, "sync, static or auto"});
  expect_failure(eval("--memory-limit", "1:600M@100"), 2,
                 {"--memory-limit 1:600M@100", "motley train", "RANK:BYTES"});
  expect_nothing_left();
}

TEST_F(BadInput, a_device_that_is_not_there) {
  write_h5(data / "train.h5", {});
  expect_failure(train(2, {"--device", "cuda"}), 6, {"cuda"});
  expect_nothing_left();
}

TEST_F(BadInput, memory_that_holds_no_sample) {
  write_h5(data / "train.h5", {});
  expect_failure(train(3, {"--memory-limit", "1:1M"}), 6, {"memory"});
  expect_nothing_left();
}

TEST_F(BadInput, checkpoints_that_are_not_there_or_not_good) {
  write_h5(data / "train.h5", {});
  expect_failure(train(2, {"--restore-file", "step-00000007"}), 4, {"step-00000007"});
  ASSERT_EQ(train(2).job.exit_code, 0);
  const fs::path model = fs::canonical(saved / "latest") / "model.safetensors";
  std::string bytes = read_file(model, ExitCode::input);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(model, bytes, ExitCode::input);
  expect_failure(train(2, {"--max-update", "4"}), 2, {"--max-update was given twice"});
  expect_failure(test::run_motley(2, {"train", "--data", data.string(), "--save-dir", saved.string(),
                                      "--max-update", "4", "--global-batch", "8"}),
                 4, {"model.safetensors"});
  expect_failure(test::run_motley(2, {"eval", "--data", data.string(), "--valid-subset", "train",
                                      "--save-dir", saved.string()}),
                 4, {"model.safetensors"});
}

}  // namespace
}  // namespace motley
