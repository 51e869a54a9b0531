// HDF5 image data sets: `images` (N, H, W, C) uint8 and `labels` (N) of any integer type. The attributes `mean` and
// `deviation` (C, of pixels scaled to [0, 1]) of `images` and `classes` of `labels` may be absent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/row_source.h"

namespace motley::io {

// More classes than this are a mistake: a label that is no class.
constexpr std::int64_t most_classes = 1 << 24;

struct ImageSet {
  RowSource source;  // fields: [0] images, [1] labels
  std::int64_t height = 0, width = 0, channels = 0;
};

// Opens `path` on this rank alone and describes it. Throws Error(input) with file, data set and what was
// expected: missing or unreadable file, not HDF5, `images` or `labels` missing (the sentence lists what is
// there), wrong type or number of dimensions, lengths that differ, no samples; attributes that cannot be right.
// source.images holds what the attributes say.
ImageSet describe_image_set(const std::string& path);

// Reads the labels [first, first + count) and throws Error(input) naming the row when one is outside
// [0, classes). Local: ranks divide a data set among themselves by ranges. Returns the largest label, 0 of none.
std::int64_t check_labels(const ImageSet& set, std::uint64_t first, std::uint64_t count, std::int64_t classes);

// What the attributes say, and where they say nothing what is found: one class more than the largest label, and mean and
// deviation of 4096 samples (or all, of fewer) from all over the set. Local. Error(input) when that cannot be read.
ImageFacts find_image_facts(const ImageSet& set);

// Writes a packed image set: contiguous, little-endian. Rows may come in portions, to keep memory small.
class ImageSetWriter {
 public:
  // Writes to path + ".tmp-PID" until finish(), which flushes, fsyncs and renames: a file of that name is
  // whole. The attributes are those of what was appended; `classes`, if not 0, says how many there are, and labels are
  // stored in two bytes when that is more than 256. A writer that is destroyed without finish() removes what it wrote.
  ImageSetWriter(const std::string& path, std::uint64_t samples, std::int64_t height, std::int64_t width,
                 std::int64_t channels, std::int64_t classes = 0);
  ~ImageSetWriter();
  ImageSetWriter(const ImageSetWriter&) = delete;
  ImageSetWriter& operator=(const ImageSetWriter&) = delete;

  // `images` is count x height x width x channels bytes. append_wide() is for labels that are stored in two bytes.
  void append(const std::uint8_t* images, const std::uint8_t* labels, std::uint64_t count);
  void append_wide(const std::uint8_t* images, const std::uint16_t* labels, std::uint64_t count);
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::io
