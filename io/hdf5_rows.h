// Rows of a data set that MPI-IO cannot fetch as they lie, because it is chunked, compressed, big-endian or in
// another file: read through HDF5, on this rank alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/hdf5.h"
#include "io/row_plan.h"
#include "io/row_source.h"

namespace motley::io {

class Hdf5Rows {
 public:
  // Error(input) when the data set is not there or has another shape than `field` and `rows` say.
  Hdf5Rows(const std::string& path, const Field& field, std::uint64_t rows);

  // Fetches the rows into the places that want them. Chunks are decompressed once per call: all wanted rows
  // of a layer of chunks (those with the same range of rows) are read together.
  void read(const SortedRows& wanted, std::byte* out);

  // Rows [first, first + count) in order.
  void read_range(std::uint64_t first, std::uint64_t count, std::byte* out) const;

 private:
  std::string where_;
  std::size_t row_bytes_;
  DType dtype_;
  std::vector<hsize_t> extents_;
  std::uint64_t layer_rows_ = 1;
  Hdf5Handle file_, dataset_;
  std::vector<std::byte> layer_;  // kept between calls
};

}  // namespace motley::io
