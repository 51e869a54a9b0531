// Fetches the rows of a window of one file as they lie in it, one window ahead of the compute, in a thread of
// its own.
//
// Packed files are read by MPI-IO directly: per field, a file view of an indexed type over the sorted rows,
// on a communicator that belongs to the reader (collectively, where the MPI library does that right:
// io/mpi_file.h). HDF5 selections are not used for this: building one by point or row is quadratic. Chunked,
// compressed or big-endian data sets are read by independent HDF5 reads of whole row blocks, and fields with
// tiny rows, such as labels, are read once and held (io/field_reader.h).
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "io/read_worker.h"
#include "io/row_source.h"
#include "io/sample_reader.h"

namespace motley::io {

class WindowReader final : public SampleReader {
 public:
  // Collective over `parent`, which is duplicated. Opens the file on every rank; when any of them cannot,
  // every rank throws the same AgreedError(input). Error(communication) when the ranks are not done after
  // timeout_s.
  WindowReader(const RowSource& source, MPI_Comm parent, double timeout_s = 600, RowWork work = {});
  // Destroying it is collective, and waits for a read in flight.

  // The sentence names the file, the offset and what MPI said; a short read is an error.
  Window take(double timeout_s) override { return owner_.take(timeout_s); }

 private:
  void ask(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs) override {
    owner_.request(std::move(rows), std::move(runs));
  }

  ReadOwner owner_;
};

}  // namespace motley::io
