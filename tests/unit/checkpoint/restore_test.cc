#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "checkpoint/directory.h"
#include "checkpoint/optimizer_file.h"
#include "sample.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

using test::failure_of;
using test::Sample;
using Entries = std::vector<io::SafetensorsEntry>;

class Restore : public ::testing::Test {
 protected:
  Restore() : reader_(write(directory_.path(), 1, Sample(3).contents)) {}
  motley::test::TemporaryDirectory directory_;
  Reader reader_;
  std::vector<float> memory_ = std::vector<float>(100);
};

TEST_F(Restore, all_model_tensors_that_do_not_fit_are_listed_in_one_sentence) {
  const Entries wanted = {{"conv1.weight", DType::f32, {4, 3}, memory_.data()},
                          {"fc.weight", DType::f32, {2}, memory_.data()},
                          {"fc.bias", DType::f32, {2}, memory_.data()}};
  EXPECT_EQ(failure_of([&] { reader_.read_model(wanted); }),
            (reader_.path() / "model.safetensors").string() +
                " does not hold the tensors of this model; missing: fc.bias, fc.weight; unknown: conv1.bias; "
                "of another shape: conv1.weight (is float32 [3, 4], should be float32 [4, 3])");
}

TEST_F(Restore, so_are_all_optimizer_tensors) {
  const Entries wanted = {{"exp_avg/conv1.weight", DType::f32, {12}, memory_.data()},
                          {"momentum/conv1.bias", DType::f32, {3}, memory_.data()},
                          {"exp_avg/conv1.bias", DType::f32, {4}, memory_.data()}};
  EXPECT_EQ(failure_of([&] { reader_.read_optimizer(wanted); }),
            (reader_.path() / "optimizer.h5").string() +
                " does not hold the tensors of this model; missing: momentum/conv1.bias; unknown: "
                "exp_avg_sq/conv1.bias; of another shape: exp_avg/conv1.bias (is float32 [3], should be "
                "float32 [4]), "
                "exp_avg/conv1.weight (is float32 [3, 4], should be float32 [12])");
}

TEST_F(Restore, a_refused_restore_writes_to_no_tensor) {
  const Entries wanted = {{"conv1.weight", DType::f32, {3, 4}, memory_.data()}};
  EXPECT_NE(failure_of([&] { reader_.read_model(wanted); }), "no failure");
  EXPECT_EQ(memory_, std::vector<float>(100));
}

TEST(OptimizerFile, every_bit_pattern_shape_and_depth_comes_back) {
  const motley::test::TemporaryDirectory directory;
  std::mt19937 bits(5);
  std::vector<float> numbers(120), back(120);
  for (float& number : numbers) {
    const auto word = static_cast<std::uint32_t>(bits());  // NaNs and denormals among them
    std::memcpy(&number, &word, sizeof word);
  }
  const auto entries = [](float* data) {
    return Entries{
        {"scalar", DType::f32, {}, data},
        {"exp_avg/bert.encoder.layer.0.attention.self.query.weight", DType::f32, {2, 3, 4}, data + 1},
        {"a/b/c", DType::f32, {1, 1, 1, 1, 1, 5}, data + 25},
        {"empty/x", DType::f32, {0, 4}, data},
        {"names with spaces/and ümläuts", DType::f32, {90}, data + 30}};
  };
  write_optimizer_file(directory.path() / "o.h5", entries(numbers.data()));
  read_optimizer_file(directory.path() / "o.h5", entries(back.data()));
  EXPECT_EQ(std::memcmp(numbers.data(), back.data(), numbers.size() * sizeof(float)), 0);
}

TEST(OptimizerFile, without_state_is_a_file_all_the_same) {
  const motley::test::TemporaryDirectory directory;
  write_optimizer_file(directory.path() / "o.h5", {});
  read_optimizer_file(directory.path() / "o.h5", {});
}

TEST(OptimizerFile, errors_are_checkpoint_errors_with_the_path) {
  const motley::test::TemporaryDirectory directory;
  const auto path = directory.path() / "o.h5";
  EXPECT_NE(failure_of([&] { read_optimizer_file(path, {}); }).find(path.string()), std::string::npos);
  write_file(path, "no HDF5", ExitCode::input);
  EXPECT_NE(failure_of([&] { read_optimizer_file(path, {}); }).find("is not an HDF5 file"),
            std::string::npos);
  const auto nowhere = directory.path() / "no" / "o.h5";
  EXPECT_NE(failure_of([&] { write_optimizer_file(nowhere, {}); }).find(nowhere.string()), std::string::npos);
}

}  // namespace
}  // namespace motley::checkpoint
