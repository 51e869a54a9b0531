// A data set seen as rows of bytes in a file: what the window reader needs to know to fetch samples by index
// without going through HDF5 again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"

namespace motley::io {

// One HDF5 data set, seen row by row along its first dimension.
struct Field {
  std::string name;               // "images"
  DType dtype = DType::u8;        // little-endian in the file
  Shape row;                      // shape of one row; rank 0 for a scalar per sample
  bool packed = true;             // contiguous and uncompressed: row i lies at file_offset + i * row_bytes()
  std::uint64_t file_offset = 0;  // of row 0, when packed
  std::string why_unpacked = {};  // when not packed, what it is instead: "chunked and compressed (gzip 4)"

  std::size_t row_bytes() const { return static_cast<std::size_t>(row.elements()) * size_of(dtype); }
};

struct RowSource {
  std::string path;
  std::uint64_t rows = 0;
  std::vector<Field> fields;

  bool packed() const;
  // For sending over MPI from the rank that opened the file.
  std::string to_json() const;
  static RowSource from_json(const std::string& text);
};

}  // namespace motley::io
