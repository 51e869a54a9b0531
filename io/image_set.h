// HDF5 image data sets: `images` (N, H, W, C) uint8 and `labels` (N) of any integer type.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/row_source.h"

namespace motley::io {

struct ImageSet {
  RowSource source;  // fields: [0] images, [1] labels
  std::int64_t height = 0, width = 0, channels = 0;
};

// Opens `path` on this rank alone and describes it. Throws Error(input) with file, data set and what was
// expected: missing or unreadable file, not HDF5, `images` or `labels` missing (the sentence lists what is
// there), wrong type or number of dimensions, lengths that differ, no samples.
ImageSet describe_image_set(const std::string& path);

// Reads the labels [first, first + count) and throws Error(input) naming the row when one is outside
// [0, classes). Local: ranks divide a data set among themselves by ranges.
void check_labels(const ImageSet& set, std::uint64_t first, std::uint64_t count, std::int64_t classes);

// Writes a packed image set: contiguous, little-endian. Rows may come in portions, to keep memory small.
class ImageSetWriter {
 public:
  // Writes to path + ".tmp-PID" until finish(), which flushes, fsyncs and renames: a file of that name is
  // whole. A writer that is destroyed without finish() removes what it wrote.
  ImageSetWriter(const std::string& path, std::uint64_t samples, std::int64_t height, std::int64_t width,
                 std::int64_t channels);
  ~ImageSetWriter();
  ImageSetWriter(const ImageSetWriter&) = delete;
  ImageSetWriter& operator=(const ImageSetWriter&) = delete;

  // `images` is count x height x width x channels bytes.
  void append(const std::uint8_t* images, const std::uint8_t* labels, std::uint64_t count);
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::io
