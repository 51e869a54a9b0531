#include "io/augmentation.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "test_files.h"

namespace motley::io {
namespace {

using Image = std::vector<std::uint8_t>;

// Every image that padding, cropping at (down, right) and mirroring can give, by the definition: a padded copy is made
// and cut out of.
Image crop(const Image& image, const Shape& shape, std::int64_t padding, std::int64_t down,
           std::int64_t right, bool flip) {
  const std::int64_t h = shape[0], w = shape[1], c = shape[2], wide = w + 2 * padding;
  Image padded(static_cast<std::size_t>((h + 2 * padding) * wide * c), 0);
  for (std::int64_t y = 0; y < h; ++y) {
    for (std::int64_t i = 0; i < w * c; ++i)
      padded[static_cast<std::size_t>(((y + padding) * wide + padding) * c + i)] =
          image[static_cast<std::size_t>(y * w * c + i)];
  }
  Image out;
  for (std::int64_t y = 0; y < h; ++y) {
    for (std::int64_t x = 0; x < w; ++x) {
      const std::int64_t from = flip ? w - 1 - x : x;
      for (std::int64_t k = 0; k < c; ++k)
        out.push_back(padded[static_cast<std::size_t>(((y + down) * wide + from + right) * c + k)]);
    }
  }
  return out;
}

Image slice(const Image& images, std::size_t index, std::size_t bytes) {
  return {images.begin() + static_cast<std::ptrdiff_t>(index * bytes),
          images.begin() + static_cast<std::ptrdiff_t>((index + 1) * bytes)};
}

std::string text(const Image& image) {
  return {image.begin(), image.end()};
}

TEST(Augmentation, gives_each_crop_of_the_padded_image_and_its_mirror_image_equally_often) {
  for (const std::int64_t channels : {1, 2, 3}) {
    const Shape shape{4, 5, channels};
    const auto bytes = static_cast<std::size_t>(shape.elements());
    const Image original = test::pattern_rows(1, bytes);
    constexpr std::int64_t padding = 1;
    std::map<std::string, int> counts;
    for (std::int64_t down = 0; down <= 2; ++down) {
      for (std::int64_t right = 0; right <= 2; ++right) {
        for (const bool flip : {false, true})
          counts[text(crop(original, shape, padding, down, right, flip))] = 0;
      }
    }
    ASSERT_EQ(counts.size(), 18U) << "the pattern does not tell the crops apart";
    constexpr std::size_t rows = 3600;
    Image images;
    for (std::size_t i = 0; i < rows; ++i) images.insert(images.end(), original.begin(), original.end());
    const std::vector<SlotRun> runs = {{1, 0, rows / 2}, {2, 0, rows / 2}};
    augment({padding, true, 5}, shape, runs, images);
    for (std::size_t i = 0; i < rows; ++i) {
      const auto found = counts.find(text(slice(images, i, bytes)));
      ASSERT_NE(found, counts.end()) << "row " << i << " is no crop of the image";
      ++found->second;
    }
    for (const auto& [image, count] : counts) EXPECT_NEAR(count, 200, 5 * 14) << "five deviations";
  }
}

TEST(Augmentation, crops_as_far_as_the_padding_goes_and_leaves_the_flip_alone) {
  const Shape shape{3, 3, 3};
  const Image original = test::pattern_rows(1, 27);
  Image images;
  for (int i = 0; i < 500; ++i) images.insert(images.end(), original.begin(), original.end());
  const std::vector<SlotRun> runs = {{7, 100, 500}};
  augment({4, false, 1}, shape, runs, images);
  for (std::size_t i = 0; i < 500; ++i) {
    bool known = false;
    for (std::int64_t down = 0; down <= 8 && !known; ++down) {
      for (std::int64_t right = 0; right <= 8 && !known; ++right)
        known = slice(images, i, 27) == crop(original, shape, 4, down, right, false);
    }
    ASSERT_TRUE(known) << i;
  }
}

TEST(Augmentation, flips_without_cropping) {
  const Shape shape{2, 3, 1};
  Image images;
  for (int i = 0; i < 100; ++i) images.insert(images.end(), {1, 2, 3, 4, 5, 6});
  const std::vector<SlotRun> runs = {{1, 0, 100}};
  augment({0, true, 3}, shape, runs, images);
  int flipped = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    const Image image = slice(images, i, 6);
    if (image == Image{3, 2, 1, 6, 5, 4}) {
      ++flipped;
    } else {
      EXPECT_EQ(image, (Image{1, 2, 3, 4, 5, 6}));
    }
  }
  EXPECT_NEAR(flipped, 50, 25);
}

TEST(Augmentation, depends_on_step_and_slot_and_not_on_how_rows_are_divided) {
  const Shape shape{6, 6, 3};
  const std::size_t bytes = 108;
  const Image rows = test::pattern_rows(24, bytes);
  const Augmentation augmentation{2, true, 11};
  // Two steps of 12 slots: once as one window, once as ranks with 5 and 7 slots of each have it.
  Image whole = rows;
  const std::vector<SlotRun> both = {{4, 0, 12}, {5, 0, 12}};
  augment(augmentation, shape, both, whole);
  Image parts;
  const auto take = [&](std::size_t row, std::size_t n, std::uint32_t step, std::uint32_t slot) {
    Image part(rows.begin() + static_cast<std::ptrdiff_t>(row * bytes),
               rows.begin() + static_cast<std::ptrdiff_t>((row + n) * bytes));
    const std::vector<SlotRun> run = {{step, slot, n}};
    augment(augmentation, shape, run, part);
    parts.insert(parts.end(), part.begin(), part.end());
  };
  take(0, 5, 4, 0);
  take(5, 7, 4, 5);
  take(12, 5, 5, 0);
  take(17, 7, 5, 5);
  EXPECT_EQ(parts, whole);
  Image other_step = rows, other_seed = rows;
  const std::vector<SlotRun> later = {{6, 0, 12}, {7, 0, 12}};
  augment(augmentation, shape, later, other_step);
  augment({2, true, 12}, shape, both, other_seed);
  EXPECT_NE(other_step, whole);
  EXPECT_NE(other_seed, whole);
}

}  // namespace
}  // namespace motley::io
