// Import and export of image networks under the names of torchvision (tests/golden/torchvision_names.py).
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/files.h"
#include "core/json.h"
#include "models/image_archs.h"
#include "support/hf_directory.h"
#include "support/paths.h"
#include "train/exchange.h"

namespace motley::train {
namespace {

namespace fs = std::filesystem;

std::string digest(std::vector<std::string> lines) {
  std::sort(lines.begin(), lines.end());
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::string& line : lines)
    for (const char byte : line) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string line_of(const Parameter& tensor) {
  std::vector<std::int64_t> extents;
  for (int i = 0; i < tensor.shape.rank(); ++i) extents.push_back(tensor.shape[i]);
  return fmt::format("{} {}\n", tensor.name, fmt::join(extents, "x"));
}

TEST(Torchvision, imagenet_forms_have_its_names_and_shapes) {
  const Json golden =
      Json::parse(read_file(test::source_path("golden") / "torchvision_names.json", ExitCode::input));
  int compared = 0;
  for (const ImageArch& arch : image_archs()) {
    if (!arch.name.ends_with("_imagenet")) continue;
    const std::unique_ptr<ImageNetwork> network = arch.make(arch.input, arch.classes);
    std::vector<std::string> lines;
    for (const auto* tensors : {&network->parameters.all(), &network->parameters.all_statistics()})
      for (const Parameter& tensor : *tensors) lines.push_back(line_of(tensor));
    EXPECT_EQ(lines.size(), golden.at(arch.name).at("tensors")) << arch.name;
    EXPECT_EQ(digest(lines), golden.at(arch.name).at("digest")) << arch.name;
    ++compared;
  }
  EXPECT_EQ(compared, 13);
}

class ImageExchange : public testing::Test {
 protected:
  // The tensors of a resnet8 for CIFAR-10 as torchvision would store them, each number another.
  static test::OwnedTensors resnet8() {
    const ImageArch& arch = find_image_arch("resnet8");
    const std::unique_ptr<ImageNetwork> network = arch.make(arch.input, arch.classes);
    test::OwnedTensors tensors;
    float next = 0.5f;
    for (const auto* list : {&network->parameters.all(), &network->parameters.all_statistics()}) {
      for (const Parameter& parameter : *list) {
        std::vector<float> values(static_cast<std::size_t>(parameter.shape.elements()));
        for (float& value : values) value = next += 0.25f;
        tensors.push_back(test::OwnedTensor::of(parameter.name, parameter.shape, values));
      }
    }
    tensors.push_back(
        test::OwnedTensor::of("bn1.num_batches_tracked", Shape{}, std::vector<std::int64_t>{7}));
    return tensors;
  }
  fs::path source(const test::OwnedTensors& tensors) const {
    fs::create_directories(at / "from");
    test::write_tensors(at / "from" / "model.safetensors", tensors);
    return at / "from";
  }
  ImportOptions options(const char* arch = "resnet8") const {
    ImportOptions result{
        .from = (at / "from").string(), .save_dir = (at / "run").string(), .task = "cifar10"};
    result.image.arch = arch;
    return result;
  }
  std::string failure_of(const ImportOptions& options, ExitCode code) const {
    try {
      import_model(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_FALSE(fs::exists(options.save_dir));
      return error.what();
    }
    ADD_FAILURE() << "nothing failed";
    return {};
  }
  // Exports the run of options() and compares tensors with what was imported.
  void expect_exported_unchanged(const test::OwnedTensors& imported) const {
    export_model({.save_dir = (at / "run").string(), .restore_file = "", .out = (at / "out").string()});
    const test::OwnedTensors found = test::read_tensors(at / "out" / "model.safetensors");
    ASSERT_EQ(found.size() + 1, imported.size()) << "all but the count of steps";
    for (const test::OwnedTensor& tensor : found) {
      const auto one = std::find_if(imported.begin(), imported.end(),
                                    [&](const test::OwnedTensor& t) { return t.name == tensor.name; });
      ASSERT_NE(one, imported.end()) << tensor.name;
      EXPECT_EQ(tensor.shape, one->shape) << tensor.name;
      EXPECT_EQ(tensor.bytes, one->bytes) << tensor.name;
    }
  }

  test::TemporaryDirectory directory;
  fs::path at = directory.path();
};

TEST_F(ImageExchange, tensors_and_running_statistics_come_back_bit_by_bit) {
  const test::OwnedTensors tensors = resnet8();
  source(tensors);
  import_model(options());
  expect_exported_unchanged(tensors);
  const Json config = Json::parse(read_file(at / "out" / "config.json", ExitCode::input));
  EXPECT_EQ(config["arch"], "resnet8");
  EXPECT_EQ(config["input"], Json({32, 32, 3}));
  EXPECT_EQ(config["classes"], 10);

  // What was exported says itself what it is.
  ImportOptions again{.from = (at / "out").string(), .save_dir = (at / "again").string(), .task = "cifar10"};
  import_model(again);
  EXPECT_EQ(read_file(at / "again" / "step-00000000" / "model.safetensors", ExitCode::input),
            read_file(at / "run" / "step-00000000" / "model.safetensors", ExitCode::input));
}

TEST_F(ImageExchange, of_another_network_all_differences_are_listed) {
  source(resnet8());
  const std::string said = failure_of(options("resnet14"), ExitCode::input);
  EXPECT_NE(said.find("missing: layer1.1.conv1.weight"), std::string::npos) << said;
  EXPECT_NE(said.find("layer3.1.bn2.running_var"), std::string::npos) << said;
  EXPECT_EQ(said.find("unknown"), std::string::npos) << said;

  test::OwnedTensors tensors = resnet8();
  test::named(tensors, "bn1.bias") = test::OwnedTensor::of("bn1.bias", Shape{3}, std::vector<float>{1, 2, 3});
  tensors.push_back(test::OwnedTensor::of("head.weight", Shape{1}, std::vector<float>{1}));
  // A count of steps is a whole number, and one.
  tensors.push_back(
      test::OwnedTensor::of("layer1.0.bn1.num_batches_tracked", Shape{}, std::vector<float>{1}));
  source(tensors);
  const std::string other = failure_of(options(), ExitCode::input);
  EXPECT_NE(other.find("unknown: head.weight, layer1.0.bn1.num_batches_tracked"), std::string::npos) << other;
  EXPECT_NE(other.find("bn1.bias (is float32 [3], should be float32, float16 or bfloat16 [16])"),
            std::string::npos)
      << other;

  source(resnet8());
  ImportOptions classes = options();
  classes.image.classes = 100;
  const std::string fewer = failure_of(classes, ExitCode::input);
  EXPECT_NE(fewer.find("fc.weight (is float32 [10, 64], should be float32, float16 or bfloat16 [100, 64])"),
            std::string::npos)
      << fewer;
}

TEST_F(ImageExchange, what_no_network_follows_from_gets_a_sentence) {
  source(resnet8());
  ImportOptions unnamed = options("");
  unnamed.task = "images";
  EXPECT_NE(failure_of(unnamed, ExitCode::usage).find("expected --arch"), std::string::npos);
  EXPECT_NE(failure_of(options("resnet9"), ExitCode::usage).find("did you mean \"resnet"), std::string::npos);
  ImportOptions grey = options();
  grey.image.mean = {0.5}, grey.image.deviation = {0.5};
  EXPECT_NE(failure_of(grey, ExitCode::usage).find("have 3 channel(s)"), std::string::npos);
}

}  // namespace
}  // namespace motley::train
