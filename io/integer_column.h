// Walks over a one-dimensional data set of integers in blocks, so that its length does not matter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "io/hdf5.h"

namespace motley::io {

// Calls visit(row, std::span<const T>) with successive blocks of the rows [first, first + count), converted
// to T.
template <class T, class Visit>
void visit_blocks_as(hid_t dataset, const std::string& where, std::uint64_t first, std::uint64_t count,
                     const Visit& visit) {
  constexpr std::uint64_t block_rows = 1 << 20;
  const Hdf5Handle space(MOTLEY_HDF5(where, ExitCode::input, H5Dget_space(dataset)), H5Sclose);
  std::vector<T> values;
  for (std::uint64_t done = 0; done < count;) {
    const hsize_t start = first + done, rows = std::min(block_rows, count - done);
    values.resize(rows);
    {
      const Hdf5Lock lock;
      const Hdf5Handle memory(MOTLEY_HDF5(where, ExitCode::input, H5Screate_simple(1, &rows, nullptr)),
                              H5Sclose);
      MOTLEY_HDF5(where, ExitCode::input,
                  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &start, nullptr, &rows, nullptr));
      MOTLEY_HDF5(where, ExitCode::input,
                  H5Dread(dataset, memory_type(DTypeOf<T>::value), memory.get(), space.get(), H5P_DEFAULT,
                          values.data()));
    }
    visit(std::uint64_t{start}, std::span<const T>(values));
    done += rows;
  }
}

// The same with T chosen so that no value of the data set's own integer type changes: int64, or uint64 for
// uint64.
template <class Visit>
void visit_integers(hid_t dataset, DType dtype, const std::string& where, std::uint64_t first,
                    std::uint64_t count, const Visit& visit) {
  if (dtype == DType::u64) {
    visit_blocks_as<std::uint64_t>(dataset, where, first, count, visit);
  } else {
    visit_blocks_as<std::int64_t>(dataset, where, first, count, visit);
  }
}

}  // namespace motley::io
