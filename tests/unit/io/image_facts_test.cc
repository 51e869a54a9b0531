// What image sets say of themselves: classes, mean and deviation, in attributes or found.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "io/image_set.h"
#include "io/pixel_statistics.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

using test::expect_error_with;

struct Moments {
  double mean = 0, deviation = 0;
};

// By the definition, in two passes.
std::vector<Moments> moments_of(const std::vector<std::uint8_t>& bytes, std::size_t channels) {
  std::vector<Moments> moments(channels);
  const double pixels = static_cast<double>(bytes.size() / channels);
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t i = c; i < bytes.size(); i += channels) moments[c].mean += bytes[i] / 255.0 / pixels;
    double square = 0;
    for (std::size_t i = c; i < bytes.size(); i += channels)
      square += std::pow(bytes[i] / 255.0 - moments[c].mean, 2);
    moments[c].deviation = std::sqrt(square / pixels);
  }
  return moments;
}

class ImageFactsTest : public ::testing::Test {
 protected:
  std::string path() const { return (directory_.path() / "set.h5").string(); }

  // A set as another program makes it, with whatever attributes of whatever length.
  void write_foreign(const std::vector<std::uint8_t>& images, hsize_t channels,
                     const std::vector<std::int32_t>& labels) {
    const hid_t file = H5Fcreate(path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hsize_t shape[] = {labels.size(), images.size() / labels.size() / channels, 1, channels};
    const auto put = [&](const char* name, int rank, hid_t type, const void* data) {
      const hid_t space = H5Screate_simple(rank, shape, nullptr);
      const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
      H5Dclose(set);
      H5Sclose(space);
    };
    put("images", 4, H5T_NATIVE_UINT8, images.data());
    put("labels", 1, H5T_NATIVE_INT32, labels.data());
    H5Fclose(file);
  }
  void put_attribute(const char* dataset, const char* name, const std::vector<float>& numbers) {
    const hid_t file = H5Fopen(path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, dataset, H5P_DEFAULT);
    const hsize_t count = numbers.size();
    const hid_t space = H5Screate_simple(1, &count, nullptr);
    const hid_t attribute = H5Acreate2(set, name, H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_FLOAT, numbers.data());
    H5Aclose(attribute);
    H5Sclose(space);
    H5Dclose(set);
    H5Fclose(file);
  }

  test::TemporaryDirectory directory_;
};

TEST_F(ImageFactsTest, statistics_are_those_of_the_definition_for_any_channels) {
  for (const std::size_t channels : {1, 2, 3, 5}) {
    const auto bytes = test::pattern_rows(70001, channels);
    PixelStatistics statistics(static_cast<std::int64_t>(channels));
    statistics.add(bytes.data(), 69000);
    statistics.add(bytes.data() + 69000 * channels, 1001);
    const auto expected = moments_of(bytes, channels);
    for (std::size_t c = 0; c < channels; ++c) {
      EXPECT_NEAR(statistics.mean()[c], expected[c].mean, 1e-12);
      EXPECT_NEAR(statistics.deviation()[c], expected[c].deviation, 1e-12);
      EXPECT_GT(expected[c].deviation, 0.1) << "the pattern is flat";
    }
  }
}

TEST_F(ImageFactsTest, a_channel_that_is_all_the_same_has_deviation_1) {
  PixelStatistics statistics(1);
  const std::vector<std::uint8_t> same(100000, 251);
  statistics.add(same.data(), same.size());
  EXPECT_DOUBLE_EQ(statistics.mean()[0], 251 / 255.0);
  EXPECT_EQ(statistics.deviation()[0], 1);
}

TEST_F(ImageFactsTest, what_the_writer_was_given_is_in_the_attributes) {
  const auto images = test::pattern_rows(10, 24);
  const std::vector<std::uint8_t> labels = {0, 1, 2, 3, 4, 5, 6, 6, 6, 0};
  ImageSetWriter writer(path(), 10, 4, 2, 3);
  writer.append(images.data(), labels.data(), 4);
  writer.append(images.data() + 4 * 24, labels.data() + 4, 6);
  writer.finish();
  const ImageSet set = describe_image_set(path());
  ASSERT_TRUE(set.source.images.has_value());
  EXPECT_EQ(set.source.images->classes, 7);
  const auto expected = moments_of(images, 3);
  ASSERT_EQ(set.source.images->mean.size(), 3U);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(set.source.images->mean[c], expected[c].mean, 1e-12);
    EXPECT_NEAR(set.source.images->deviation[c], expected[c].deviation, 1e-12);
  }
  EXPECT_EQ(find_image_facts(set), *set.source.images);
  EXPECT_EQ(RowSource::from_json(set.source.to_json()).images, set.source.images);
}

TEST_F(ImageFactsTest, more_than_256_classes_are_stored_in_two_bytes) {
  const std::vector<std::uint8_t> images(3, 9);
  const std::vector<std::uint16_t> labels = {0, 299, 256};
  ImageSetWriter writer(path(), 3, 1, 1, 1, 300);
  EXPECT_THROW(writer.append(images.data(), images.data(), 1), Error) << "one byte is too little";
  writer.append_wide(images.data(), labels.data(), 3);
  writer.finish();
  const ImageSet set = describe_image_set(path());
  EXPECT_EQ(set.source.images->classes, 300);
  EXPECT_EQ(set.source.fields[1].dtype, DType::u16);
  check_labels(set, 0, 3, 300);
  expect_error_with(ExitCode::input, {"set.h5, data set `labels`, row 1: label 299; expected 0 to 298"},
                    [&] { check_labels(set, 0, 3, 299); });
}

TEST_F(ImageFactsTest, what_is_not_said_is_found) {
  // More rows than are looked at: those are from all over the set, so both halves count.
  constexpr std::size_t rows = 10000;
  std::vector<std::uint8_t> images(rows * 4);
  for (std::size_t i = 0; i < images.size(); ++i)
    images[i] = static_cast<std::uint8_t>(i < images.size() / 2 ? 10 : 200);
  std::vector<std::int32_t> labels(rows, 3);
  labels[9000] = 41;
  write_foreign(images, 2, labels);
  const ImageSet set = describe_image_set(path());
  EXPECT_EQ(*set.source.images, ImageFacts{});
  const ImageFacts facts = find_image_facts(set);
  EXPECT_EQ(facts.classes, 42);
  ASSERT_EQ(facts.mean.size(), 2U);
  EXPECT_NEAR(facts.mean[1], 105 / 255.0, 0.02);
  EXPECT_NEAR(facts.deviation[1], 95 / 255.0, 0.02);
}

TEST_F(ImageFactsTest, what_is_found_in_a_small_set_is_exact) {
  const auto images = test::pattern_rows(100, 6);
  write_foreign(images, 3, std::vector<std::int32_t>(100, 0));
  const ImageFacts facts = find_image_facts(describe_image_set(path()));
  const auto expected = moments_of(images, 3);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(facts.mean[c], expected[c].mean, 1e-12);
    EXPECT_NEAR(facts.deviation[c], expected[c].deviation, 1e-12);
  }
}

TEST_F(ImageFactsTest, attributes_that_cannot_be_right_get_a_sentence) {
  const auto fresh = [&] { write_foreign(std::vector<std::uint8_t>(6, 1), 3, {0, 1}); };
  const auto expect = [&](const std::string& sentence) {
    expect_error_with(ExitCode::input, {sentence}, [&] { describe_image_set(path()); });
  };
  fresh();
  put_attribute("images", "mean", {0.5F, 0.5F});
  expect("attribute `mean` has 2 number(s); expected one per channel, 3");
  fresh();
  put_attribute("images", "mean", {0.5F, 0.5F, 0.5F});
  expect("only one of the attributes `mean` and `deviation`; expected both or neither");
  put_attribute("images", "deviation", {0.5F, 0, 0.5F});
  expect("attribute `deviation`: 0; expected positive numbers");
  fresh();
  put_attribute("labels", "classes", {2.5F});
  expect("attribute `classes`: 2.5; expected one whole number, 1 to 16777216");
}

TEST_F(ImageFactsTest, labels_that_are_no_classes_are_named_when_classes_are_counted) {
  write_foreign(std::vector<std::uint8_t>(3, 1), 1, {0, 5, -1});
  expect_error_with(ExitCode::input, {"set.h5, data set `labels`, row 2: label -1; expected 0 to 16777215"},
                    [&] { find_image_facts(describe_image_set(path())); });
}

}  // namespace
}  // namespace motley::io
