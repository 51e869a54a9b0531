#include "io/idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

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

std::string u32(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string idx_images(std::uint32_t samples, std::uint32_t height, std::uint32_t width,
                       std::uint32_t magic = 0x803) {
  const auto pixels = test::pattern_rows(samples, std::uint64_t{height} * width);
  return u32(magic) + u32(samples) + u32(height) + u32(width) + std::string(pixels.begin(), pixels.end());
}

std::string idx_labels(std::uint32_t samples, std::uint32_t magic = 0x801) {
  std::string labels;
  for (std::uint32_t i = 0; i < samples; ++i) labels += static_cast<char>(i * 3 % 10);
  return u32(magic) + u32(samples) + labels;
}

std::string gzip(const std::string& content) {
  z_stream deflater{};
  deflateInit2(&deflater, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&deflater, content.size()) + 64, '\0');
  deflater.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  deflater.avail_in = static_cast<uInt>(content.size());
  deflater.next_out = reinterpret_cast<Bytef*>(out.data());
  deflater.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&deflater, Z_FINISH), Z_STREAM_END);
  out.resize(deflater.total_out);
  deflateEnd(&deflater);
  return out;
}

class Idx : public ::testing::Test {
 private:
  const test::TemporaryDirectory directory_;

 protected:
  std::string path(const char* name) const { return (directory_.path() / name).string(); }
  const std::string images_ = path("images-idx3-ubyte"), labels_ = path("labels-idx1-ubyte"),
                    out_ = path("out.h5");

  void write(const std::string& images, const std::string& labels) const {
    test::write_bytes(images_, images);
    test::write_bytes(labels_, labels);
  }

  // Nothing but the two inputs may be there afterwards.
  void expect_input_error(const std::string& sentence) const {
    test::expect_error(ExitCode::input, sentence, [this] { convert_idx(images_, labels_, out_); });
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      EXPECT_TRUE(entry.path() == images_ || entry.path() == labels_) << entry.path() << " was left behind";
    }
  }

  void expect_converted(std::uint64_t samples, std::int64_t height, std::int64_t width) const {
    const IdxSummary summary = convert_idx(images_, labels_, out_);
    EXPECT_EQ(summary.samples, samples);
    EXPECT_EQ(summary.height, height);
    EXPECT_EQ(summary.width, width);
    const ImageSet set = describe_image_set(out_);
    ASSERT_TRUE(set.source.packed());
    EXPECT_EQ(set.source.rows, samples);
    EXPECT_EQ(set.source.fields[0].row, (Shape{height, width, 1}));
    const std::string file = read_file(out_, ExitCode::input);
    const std::string images =
        idx_images(static_cast<std::uint32_t>(samples), static_cast<std::uint32_t>(height),
                   static_cast<std::uint32_t>(width));
    const std::string labels = idx_labels(static_cast<std::uint32_t>(samples));
    EXPECT_EQ(file.compare(set.source.fields[0].file_offset, images.size() - 16, images, 16), 0);
    EXPECT_EQ(file.compare(set.source.fields[1].file_offset, labels.size() - 8, labels, 8), 0);
  }
};

TEST_F(Idx, plain_files_round_trip) {
  write(idx_images(37, 5, 7), idx_labels(37));
  expect_converted(37, 5, 7);
}

TEST_F(Idx, gzip_is_told_by_content_and_not_by_name) {
  write(gzip(idx_images(37, 5, 7)), idx_labels(37));
  expect_converted(37, 5, 7);
  write(idx_images(37, 5, 7), gzip(idx_labels(37)));
  expect_converted(37, 5, 7);
}

TEST_F(Idx, a_gzip_file_may_have_several_members) {
  const std::string images = idx_images(37, 5, 7);
  write(gzip(images.substr(0, 10)) + gzip(images.substr(10, 500)) + gzip("") + gzip(images.substr(510)),
        idx_labels(37));
  expect_converted(37, 5, 7);
}

TEST_F(Idx, more_than_one_block_is_streamed) {
  write(gzip(idx_images(50000, 20, 10)), gzip(idx_labels(50000)));
  expect_converted(50000, 20, 10);
}

TEST_F(Idx, an_output_that_exists_is_replaced) {
  write(idx_images(3, 2, 2), idx_labels(3));
  write_file(out_, "old", ExitCode::input);
  expect_converted(3, 2, 2);
}

TEST_F(Idx, an_input_is_never_overwritten) {
  write(idx_images(3, 2, 2), idx_labels(3));
  test::expect_error(ExitCode::usage,
                     "the output " + labels_ + " is the input " + labels_ + "; expected another name",
                     [this] { convert_idx(images_, labels_, labels_); });
  EXPECT_EQ(read_file(labels_, ExitCode::input), idx_labels(3));
}

TEST_F(Idx, missing_files_are_said) {
  write_file(images_, idx_images(3, 2, 2), ExitCode::input);
  expect_input_error("cannot open " + labels_ + ": No such file or directory");
  std::filesystem::create_directory(labels_);
  expect_input_error(labels_ + " is a directory; a file was expected");
}

TEST_F(Idx, wrong_magic_numbers_are_said_with_what_was_found) {
  write(idx_images(3, 2, 2, 0x0d03), idx_labels(3));
  expect_input_error(images_ +
                     ": the magic number is 0x00000d03; expected 0x00000803, an IDX file of uint8 images");
  write(idx_images(3, 2, 2), idx_labels(3, 0x0c01));
  expect_input_error(labels_ +
                     ": the magic number is 0x00000c01; expected 0x00000801, an IDX file of uint8 labels");
  write(idx_labels(3), idx_images(3, 2, 2));
  expect_input_error(
      images_ +
      ": the magic number is 0x00000801; expected 0x00000803, an IDX file of uint8 images (this is a "
      "label file: were the two swapped?)");
  write(idx_images(3, 2, 2), gzip(idx_images(3, 2, 2)));
  expect_input_error(
      labels_ +
      ": the magic number is 0x00000803; expected 0x00000801, an IDX file of uint8 labels (this is an "
      "image file: were the two swapped?)");
}

TEST_F(Idx, a_header_cut_short_is_said) {
  write("", idx_labels(3));
  expect_input_error(images_ + ": ends inside the header, before the magic number: not a whole IDX file");
  write(idx_images(3, 2, 2).substr(0, 11), idx_labels(3));
  expect_input_error(images_ + ": ends inside the header, before the height: not a whole IDX file");
  write(idx_images(3, 2, 2), gzip(idx_labels(3).substr(0, 6)));
  expect_input_error(labels_ + ": ends inside the header, before the number of labels: not a whole IDX file");
}

TEST_F(Idx, truncation_and_trailing_bytes_are_said_with_both_sizes) {
  const std::string images = idx_images(3, 2, 2), labels = idx_labels(3);
  write(images.substr(0, 20), labels);
  expect_input_error(images_ + ": the file has 20 bytes; its header announces 3 images, which take 28 bytes");
  write(images + "xy", labels);
  expect_input_error(images_ + ": the file has 30 bytes; its header announces 3 images, which take 28 bytes");
  write(images, labels + "x");
  expect_input_error(labels_ + ": the file has 12 bytes; its header announces 3 labels, which take 11 bytes");
  write(gzip(images.substr(0, 20)), labels);
  expect_input_error(
      images_ +
      ": the decompressed content has 20 bytes; its header announces 3 images, which take 28 bytes");
  write(gzip(images + "xy"), labels);
  expect_input_error(
      images_ +
      ": the decompressed content has 30 bytes; its header announces 3 images, which take 28 bytes");
  write(images, gzip(labels.substr(0, 9)));
  expect_input_error(
      labels_ + ": the decompressed content has 9 bytes; its header announces 3 labels, which take 11 bytes");
}

TEST_F(Idx, a_gzip_stream_cut_short_anywhere_is_said) {
  const std::string images = gzip(idx_images(3, 20, 20)), labels = idx_labels(3);
  for (std::size_t length = 2; length < images.size(); ++length) {
    write(images.substr(0, length), labels);
    test::expect_error_with(
        ExitCode::input,
        {images_ + ": the gzip stream ends too early, after ", " bytes of content: the file was cut short"},
        [this] { convert_idx(images_, labels_, out_); });
    ASSERT_FALSE(std::filesystem::exists(out_));
  }
}

TEST_F(Idx, a_damaged_gzip_stream_is_said) {
  std::string images = gzip(idx_images(300, 20, 20));
  images[images.size() - 6] ^= 1;  // the checksum
  write(images, idx_labels(300));
  expect_input_error(images_ +
                     ": the gzip stream is damaged after 120016 bytes of content: incorrect data check");
}

TEST_F(Idx, bytes_after_a_gzip_stream_are_said) {
  write(gzip(idx_images(3, 2, 2)) + "garbage", idx_labels(3));
  expect_input_error(
      images_ +
      ": the gzip stream is followed by bytes that do not belong to it; expected the end of the file");
  write(idx_images(3, 2, 2), gzip(idx_labels(3)) + std::string(1, '\0'));
  expect_input_error(
      labels_ +
      ": the gzip stream is followed by bytes that do not belong to it; expected the end of the file");
}

TEST_F(Idx, different_numbers_of_images_and_labels_are_said) {
  write(idx_images(3, 2, 2), idx_labels(4));
  expect_input_error(images_ + " has 3 images and " + labels_ + " has 4 labels; expected as many");
}

TEST_F(Idx, empty_sets_and_empty_images_are_said) {
  write(idx_images(0, 2, 2), idx_labels(0));
  expect_input_error(images_ + ": holds no images; expected at least one");
  write(idx_images(3, 2, 2), idx_labels(0));
  expect_input_error(labels_ + ": holds no labels; expected at least one");
  write(idx_images(3, 0, 2), idx_labels(3));
  expect_input_error(images_ + ": the images are 0 x 2 pixels; expected at least one pixel and at most 2^30");
}

TEST_F(Idx, a_header_that_announces_the_impossible_is_said) {
  write(u32(0x803) + u32(0xffffffff) + u32(28) + u32(28), u32(0x801) + u32(0xffffffff));
  expect_input_error(
      images_ +
      ": the file has 16 bytes; its header announces 4294967295 images, which take 3367254359296 bytes");
  write(u32(0x803) + u32(1) + u32(0xffffffff) + u32(0xffffffff), idx_labels(1));
  expect_input_error(
      images_ +
      ": the images are 4294967295 x 4294967295 pixels; expected at least one pixel and at most 2^30");
}

// The data set that CI machines have; what is checked of it was published with it.
TEST_F(Idx, fashion_mnist_is_converted_where_it_is_installed) {
  const std::filesystem::path installed = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(installed)) GTEST_SKIP() << installed << " is not installed";
  const IdxSummary summary = convert_idx((installed / "t10k-images-idx3-ubyte.gz").string(),
                                         (installed / "t10k-labels-idx1-ubyte.gz").string(), out_);
  EXPECT_EQ(summary.samples, 10000U);
  EXPECT_EQ(summary.height, 28);
  EXPECT_EQ(summary.width, 28);
  const ImageSet set = describe_image_set(out_);
  check_labels(set, 0, 10000, 10);
  const std::string file = read_file(out_, ExitCode::input);
  std::vector<int> samples_of(10);
  for (std::uint64_t i = 0; i < 10000; ++i) {
    ++samples_of[static_cast<std::uint8_t>(file[set.source.fields[1].file_offset + i])];
  }
  EXPECT_EQ(samples_of, std::vector<int>(10, 1000));
}

}  // namespace
}  // namespace motley::io
