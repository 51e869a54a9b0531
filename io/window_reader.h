// Fetches the rows of a window, one window ahead of the compute, in a thread of its own.
//
// Packed files are read by MPI-IO directly: per field, a file view of an indexed type over the sorted rows,
// on a communicator that belongs to the reader (collectively, where the MPI library does that right:
// io/mpi_file.h). HDF5 selections are not used for this: building one by point or row is quadratic. Chunked,
// compressed or big-endian data sets are read by independent HDF5 reads of whole row blocks, and fields with
// tiny rows, such as labels, are read once and held (io/field_reader.h).
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "io/row_source.h"

namespace motley::io {

// The rows of one window of this rank, in the order in which they were asked for.
struct Window {
  std::uint64_t rows = 0;
  // One buffer per field: rows x field.row_bytes().
  std::vector<std::vector<std::byte>> fields;
};

class WindowReader {
 public:
  // Collective over `parent`, which is duplicated. Opens the file on every rank; when any of them cannot,
  // every rank throws the same AgreedError(input). Error(communication) when the ranks are not done after
  // timeout_s.
  WindowReader(const RowSource& source, MPI_Comm parent, double timeout_s = 600);
  ~WindowReader();  // collective; waits for a read in flight
  WindowReader(const WindowReader&) = delete;
  WindowReader& operator=(const WindowReader&) = delete;

  // Starts reading `rows` (each < source.rows; repeats allowed; may be empty). Collective in the sense that
  // every rank must ask for as many windows in the same order. At most two windows may be outstanding.
  void request(std::vector<std::uint64_t> rows);

  // The oldest window asked for; blocks until it is read, at most timeout_s. Throws Error(input) when this
  // rank's read failed (file, offset, what MPI said; a short read is one), Error(device) when its memory ran
  // out, Error(communication) when the window did not come in time.
  Window take(double timeout_s);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::io
