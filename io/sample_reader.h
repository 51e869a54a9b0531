// Gives a rank the samples of its windows, one window ahead of the compute. How depends on where they lie:
// WindowReader for files that are read as they are, ShardReader for those that have to be decoded.
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
  // The rows as they were asked for, so that an error can say which one is meant (RowSource::where).
  std::vector<std::uint64_t> ids;
};

class SampleReader {
 public:
  virtual ~SampleReader() = default;

  // Starts reading `rows` (each < source.rows; repeats allowed; may be empty). Collective in the sense that
  // every rank must ask for as many windows in the same order. At most two windows may be outstanding.
  virtual void request(std::vector<std::uint64_t> rows) = 0;

  // The oldest window asked for; blocks until it is read, at most timeout_s. Throws Error(input) when this
  // rank's read failed, Error(device) when its memory ran out, Error(communication) when the window did not
  // come in time.
  virtual Window take(double timeout_s) = 0;
};

// Rows of decoded blocks that a ShardReader keeps, unless told otherwise.
constexpr std::uint64_t default_cache_rows = 65536;

// Error(input) when this rank cannot open the source, or the first of its shards. Readers of shards open them
// when their rows are wanted: a file system that only some machines see is to be noticed before.
void check_reachable(const RowSource& source);

// The reader that `source` needs. Collective over `comm`, which is duplicated where the ranks read together;
// errors are those of the readers' constructors. `cache_rows`: see ShardReader.
std::unique_ptr<SampleReader> make_reader(const RowSource& source, MPI_Comm comm, double timeout_s = 600,
                                          std::uint64_t cache_rows = default_cache_rows);

}  // namespace motley::io
