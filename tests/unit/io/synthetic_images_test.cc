#include "io/synthetic_images.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/files.h"
#include "io/image_set.h"
#include "support/paths.h"

namespace motley::io {
namespace {

struct Drawn {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint16_t> labels;
};

Drawn draw(const SyntheticImages& set) {
  const auto bytes = static_cast<std::size_t>(set.height * set.width * set.channels);
  Drawn drawn{std::vector<std::uint8_t>(set.samples * bytes), {}};
  for (std::uint64_t i = 0; i < set.samples; ++i)
    drawn.labels.push_back(draw_synthetic_image(set, i, drawn.pixels.data() + i * bytes));
  return drawn;
}

// The part of `judged` that lies nearest to the mean image of its own class among those of `learned`.
double nearest_mean_accuracy(const Drawn& learned, const Drawn& judged, std::size_t classes) {
  const std::size_t bytes = learned.pixels.size() / learned.labels.size();
  std::vector<std::vector<double>> means(classes, std::vector<double>(bytes));
  std::vector<double> counts(classes);
  for (std::size_t i = 0; i < learned.labels.size(); ++i) {
    ++counts[learned.labels[i]];
    for (std::size_t p = 0; p < bytes; ++p) means[learned.labels[i]][p] += learned.pixels[i * bytes + p];
  }
  std::size_t right = 0;
  for (std::size_t i = 0; i < judged.labels.size(); ++i) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::max();
    for (std::size_t k = 0; k < classes; ++k) {
      double distance = 0;
      for (std::size_t p = 0; p < bytes; ++p) {
        const double difference = judged.pixels[i * bytes + p] - means[k][p] / counts[k];
        distance += difference * difference;
      }
      if (distance < least) {
        least = distance;
        best = k;
      }
    }
    right += best == judged.labels[i] ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(judged.labels.size());
}

TEST(SyntheticImages, classes_can_be_learned_from_one_seed_and_told_apart_in_another) {
  const SyntheticImages train{
      .samples = 600, .height = 16, .width = 20, .channels = 3, .classes = 10, .seed = 1};
  SyntheticImages valid = train;
  valid.samples = 300;
  valid.seed = 2;
  const Drawn learned = draw(train), judged = draw(valid);
  EXPECT_GT(nearest_mean_accuracy(learned, judged, 10), 0.9);
  Drawn shuffled = judged;
  for (std::uint16_t& label : shuffled.labels) label = static_cast<std::uint16_t>((label + 1) % 10);
  EXPECT_LT(nearest_mean_accuracy(learned, shuffled, 10), 0.1);
}

TEST(SyntheticImages, another_seed_gives_other_images) {
  const SyntheticImages one{.samples = 50, .seed = 1}, two{.samples = 50, .seed = 2};
  const Drawn a = draw(one), b = draw(two);
  EXPECT_NE(a.pixels, b.pixels);
  EXPECT_NE(a.labels, b.labels);
  std::size_t same = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) same += a.pixels[i] == b.pixels[i] ? 1 : 0;
  EXPECT_LT(static_cast<double>(same), 0.05 * static_cast<double>(a.pixels.size()));
}

TEST(SyntheticImages, every_class_comes_about_equally_often) {
  const SyntheticImages set{.samples = 4000, .height = 1, .width = 1, .channels = 1, .classes = 8, .seed = 5};
  std::vector<int> counts(8);
  for (const std::uint16_t label : draw(set).labels) ++counts.at(label);
  for (const int count : counts)
    EXPECT_NEAR(count, 500, 5 * 21) << "five deviations of the binomial distribution";
}

TEST(SyntheticImages, images_differ_though_their_class_is_the_same) {
  const SyntheticImages set{.samples = 2, .classes = 1};
  const Drawn drawn = draw(set);
  EXPECT_NE(std::memcmp(drawn.pixels.data(), drawn.pixels.data() + 3072, 3072), 0);
}

TEST(SyntheticImages, a_file_holds_what_is_drawn_image_by_image_and_is_the_same_twice) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "set.h5").string(),
                    again = (directory.path() / "again.h5").string();
  // Several pieces of 4 MiB.
  const SyntheticImages set{
      .samples = 100, .height = 200, .width = 300, .channels = 3, .classes = 300, .seed = 9};
  write_synthetic_images(set, path);
  write_synthetic_images(set, again);
  const std::string file = read_file(path, ExitCode::input);
  EXPECT_EQ(file, read_file(again, ExitCode::input));
  const ImageSet found = describe_image_set(path);
  EXPECT_EQ(found.source.rows, 100U);
  EXPECT_EQ(found.source.fields[0].row, (Shape{200, 300, 3}));
  EXPECT_EQ(found.source.images->classes, 300);
  const Drawn drawn = draw(set);
  EXPECT_EQ(
      std::memcmp(file.data() + found.source.fields[0].file_offset, drawn.pixels.data(), drawn.pixels.size()),
      0);
  EXPECT_EQ(std::memcmp(file.data() + found.source.fields[1].file_offset, drawn.labels.data(), 200), 0);
}

}  // namespace
}  // namespace motley::io
