#include "io/cifar.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"
#include "io/image_set.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

using test::expect_error_with;
namespace fs = std::filesystem;

std::uint8_t plane_byte(std::size_t record, std::size_t channel, std::size_t pixel) {
  return static_cast<std::uint8_t>(record * 31 + channel * 97 + pixel * 7 + pixel / 32);
}

// A file as it is published: per record its labels, then the planes.
std::string records(const std::vector<std::vector<std::uint8_t>>& labels) {
  std::string bytes;
  for (std::size_t r = 0; r < labels.size(); ++r) {
    for (const std::uint8_t label : labels[r]) bytes += static_cast<char>(label);
    for (std::size_t c = 0; c < 3; ++c) {
      for (std::size_t p = 0; p < 1024; ++p) bytes += static_cast<char>(plane_byte(r, c, p));
    }
  }
  return bytes;
}

class CifarTest : public ::testing::Test {
 protected:
  std::string put(const std::string& name, const std::string& bytes) const {
    write_file(directory_.path() / name, bytes, ExitCode::input);
    return (directory_.path() / name).string();
  }
  std::string out() const { return (directory_.path() / "out.h5").string(); }
  void expect_no_output() const {
    for (const auto& entry : fs::directory_iterator(directory_.path()))
      EXPECT_EQ(entry.path().filename().string().find("out.h5"), std::string::npos) << entry.path();
  }
  std::vector<std::uint8_t> field(const ImageSet& set, std::size_t index) const {
    const std::string file = read_file(out(), ExitCode::input);
    const Field& which = set.source.fields[index];
    const char* const first = file.data() + which.file_offset;
    return {first, first + set.source.rows * which.row_bytes()};
  }

  test::TemporaryDirectory directory_;
};

TEST_F(CifarTest, planes_become_pixels_and_files_follow_each_other) {
  const std::string a = put("a.bin", records({{3}, {9}})), b = put("b.bin", records({{0}}));
  const CifarFiles files = recognise_cifar({a, b});
  EXPECT_EQ(files.kind, CifarKind::cifar10);
  const CifarSummary summary = convert_cifar(files, false, out());
  EXPECT_EQ(summary.samples, 3U);
  EXPECT_EQ(summary.classes, 10);
  const ImageSet set = describe_image_set(out());
  EXPECT_EQ(set.source.fields[0].row, (Shape{32, 32, 3}));
  EXPECT_EQ(set.source.images->classes, 10);
  EXPECT_TRUE(set.source.packed());
  EXPECT_EQ(field(set, 1), (std::vector<std::uint8_t>{3, 9, 0}));
  const std::vector<std::uint8_t> pixels = field(set, 0);
  const std::size_t record_of[] = {0, 1, 0};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t p = 0; p < 1024; ++p) {
      for (std::size_t c = 0; c < 3; ++c)
        ASSERT_EQ(pixels[(i * 1024 + p) * 3 + c], plane_byte(record_of[i], c, p))
            << i << " " << p << " " << c;
    }
  }
}

TEST_F(CifarTest, cifar_100_has_fine_labels_and_coarse_ones_on_request) {
  const std::string a = put("train.bin", records({{19, 99}, {4, 0}}));
  const CifarFiles files = recognise_cifar({a});
  EXPECT_EQ(files.kind, CifarKind::cifar100);
  EXPECT_EQ(convert_cifar(files, false, out()).classes, 100);
  EXPECT_EQ(field(describe_image_set(out()), 1), (std::vector<std::uint8_t>{99, 0}));
  EXPECT_EQ(convert_cifar(files, true, out()).classes, 20);
  EXPECT_EQ(field(describe_image_set(out()), 1), (std::vector<std::uint8_t>{19, 4}));
  EXPECT_EQ(describe_image_set(out()).source.images->classes, 20);
}

TEST_F(CifarTest, many_records_are_read_in_pieces) {
  std::vector<std::vector<std::uint8_t>> labels;
  for (int i = 0; i < 2500; ++i) labels.push_back({static_cast<std::uint8_t>(i % 10)});
  EXPECT_EQ(convert_cifar(recognise_cifar({put("a.bin", records(labels))}), false, out()).samples, 2500U);
  const ImageSet set = describe_image_set(out());
  const std::vector<std::uint8_t> found = field(set, 1), pixels = field(set, 0);
  for (std::size_t i = 0; i < 2500; ++i) {
    ASSERT_EQ(found[i], i % 10);
    ASSERT_EQ(pixels[i * 3072 + 3 * 500 + 2], plane_byte(i, 2, 500)) << i;
  }
}

TEST_F(CifarTest, a_directory_is_searched_for_the_published_names) {
  const std::string directory = directory_.path().string();
  expect_error_with(ExitCode::input, {"has no files of CIFAR; expected data_batch_1.bin"},
                    [&] { find_cifar(directory, "train"); });
  put("train.bin", "");
  EXPECT_EQ(find_cifar(directory, "train").paths, std::vector<std::string>{directory + "/train.bin"});
  EXPECT_EQ(find_cifar(directory, "test").paths, std::vector<std::string>{directory + "/test.bin"});
  EXPECT_EQ(find_cifar(directory, "test").kind, CifarKind::cifar100);
  put("data_batch_1.bin", records({{1}}));
  const CifarFiles train = find_cifar(directory, "train");
  EXPECT_EQ(train.kind, CifarKind::cifar10);
  ASSERT_EQ(train.paths.size(), 5U);
  EXPECT_EQ(train.paths[4], directory + "/data_batch_5.bin");
  EXPECT_EQ(find_cifar(directory, "test").paths, std::vector<std::string>{directory + "/test_batch.bin"});
  expect_error_with(ExitCode::input, {"data_batch_2.bin: No such file"},
                    [&] { convert_cifar(train, false, out()); });
  expect_no_output();
  expect_error_with(ExitCode::input, {"there is no directory"},
                    [&] { find_cifar(directory + "/no", "train"); });
}

TEST_F(CifarTest, a_wrong_size_is_said_with_what_was_expected) {
  const std::string good = records({{1}, {2}});
  const std::string path = put("cut.bin", good.substr(0, good.size() - 1));
  expect_error_with(
      ExitCode::input,
      {"cut.bin has 6145 bytes; expected a multiple of 3073 (records of CIFAR-10) or of 3074 (of CIFAR-100)"},
      [&] { recognise_cifar({path}); });
  expect_error_with(ExitCode::input, {"empty.bin has 0 bytes"},
                    [&] { recognise_cifar({put("empty.bin", "")}); });
  expect_error_with(ExitCode::input, {"missing.bin"}, [&] { recognise_cifar({"missing.bin"}); });
  expect_error_with(ExitCode::input,
                    {"cut.bin has 6145 bytes; expected a multiple of 3073, the size of a record of CIFAR-10"},
                    [&] {
                      convert_cifar({CifarKind::cifar10, {put("good.bin", good), path}}, false, out());
                    });
  expect_no_output();
}

TEST_F(CifarTest, a_size_that_fits_both_kinds_is_not_guessed_at) {
  const std::string path = put("both.bin", std::string(3073 * 3074, '\0'));
  expect_error_with(ExitCode::input, {"and not of both"}, [&] { recognise_cifar({path}); });
}

TEST_F(CifarTest, files_of_different_kinds_do_not_go_together) {
  const std::string a = put("a.bin", records({{1}})), b = put("b.bin", records({{1, 1}}));
  expect_error_with(ExitCode::input, {"a.bin is a file of CIFAR-10 and "}, [&] { recognise_cifar({a, b}); });
}

TEST_F(CifarTest, a_label_out_of_range_is_named_and_nothing_is_left) {
  const auto convert = [&](const std::string& bytes) {
    convert_cifar(recognise_cifar({put("a.bin", bytes)}), false, out());
  };
  expect_error_with(ExitCode::input, {"a.bin: record 1 has the label 10; expected 0 to 9"}, [&] {
    convert(records({{3}, {10}}));
  });
  expect_error_with(ExitCode::input, {"a.bin: record 0 has the fine label 100; expected 0 to 99"}, [&] {
    convert(records({{3, 100}}));
  });
  expect_error_with(ExitCode::input, {"a.bin: record 2 has the coarse label 20; expected 0 to 19"}, [&] {
    convert(records({{3, 1}, {4, 1}, {20, 1}}));
  });
  expect_no_output();
}

TEST_F(CifarTest, coarse_labels_of_cifar_10_and_an_output_that_is_an_input_are_refused) {
  const std::string a = put("a.bin", records({{1}}));
  expect_error_with(ExitCode::usage, {"--coarse is for CIFAR-100"},
                    [&] { convert_cifar(recognise_cifar({a}), true, out()); });
  expect_error_with(ExitCode::usage, {"is the input"},
                    [&] { convert_cifar(recognise_cifar({a}), false, a); });
  expect_no_output();
}

}  // namespace
}  // namespace motley::io
