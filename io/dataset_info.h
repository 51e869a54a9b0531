// What one HDF5 data set is: its type, its shape and how it lies in the file.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/row_source.h"

namespace motley::io {

struct DatasetInfo {
  std::string name;
  std::optional<DType> dtype;  // what it is read as; none for strings, compounds, half floats and the like
  std::string type;            // for people: "int64 (big-endian)", "string"
  bool native = false;         // whether its bytes are those of the dtype in little-endian memory
  std::vector<std::uint64_t> extents;
  std::vector<std::uint64_t> chunk;  // empty unless chunked
  std::vector<int> filters;          // H5Z_filter_t of what its chunks went through, first to last
  std::string layout;                // for people: "chunks of [1563, 8], gzip 4"
  std::string missing_filter;  // a compression that this HDF5 library lacks; empty when it can read the data
  std::uint64_t stored_bytes = 0;
  bool written = true;    // whether any of the data has a place in the file
  bool past_end = false;  // whether that place is contiguous and the file ends before it does
  bool packed = false;    // contiguous, in this file, little-endian, whole bytes: see Field
  std::uint64_t file_offset = 0;
  std::string why_unpacked;  // see Field

  bool is_integer() const { return dtype && *dtype != DType::f32 && *dtype != DType::f64; }
  // "[60000, 28, 28, 1]"
  std::string shape() const;
  // The data set as rows along its first dimension; it has a dtype and at least one dimension.
  Field as_field() const;
};

// Describes the data set `dataset`, which was reached from the open file `file`, if only through an external
// link; `path` is where that file lies.
DatasetInfo describe_dataset(hid_t dataset, hid_t file, const std::string& path, const std::string& name);

// Finds the data set `name` and describes it. Error(input) when it is not there (the sentence lists what is),
// is a group, or is compressed in a way that this HDF5 library cannot undo.
DatasetInfo open_and_describe(hid_t file, const std::string& path, const std::string& name);

}  // namespace motley::io
