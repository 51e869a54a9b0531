// The IDX files of MNIST and its relatives (http://yann.lecun.com/exdb/mnist, "the IDX file format"), plain
// or gzip-compressed.
#pragma once

#include <cstdint>
#include <string>

namespace motley::io {

struct IdxSummary {
  std::uint64_t samples = 0;
  std::int64_t height = 0, width = 0;
};

// Converts an IDX image file (magic 0x0803, uint8, N x H x W) and an IDX label file (magic 0x0801, uint8, N)
// to a packed HDF5 image set with one channel. Streams. Throws Error(input), and leaves no output, for: a
// missing file, a wrong magic number (said with what was found), truncation or trailing bytes (with expected
// and found sizes), lengths that differ, no samples.
IdxSummary convert_idx(const std::string& images_path, const std::string& labels_path,
                       const std::string& out_path);

}  // namespace motley::io
