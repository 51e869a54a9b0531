// Gives a rank the samples of its windows, one window ahead of the compute. How depends on where they lie:
// WindowReader for files that are read as they are, ShardReader for those that have to be decoded.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "io/row_source.h"

namespace motley::io {

// Rows that follow each other in a window and in the global batch of one step: row i is in slot first_slot + i.
struct SlotRun {
  std::uint32_t step = 0, first_slot = 0;
  std::uint64_t rows = 0;
};

// The rows of one window of this rank, in the order in which they were asked for.
struct Window {
  std::uint64_t rows = 0;
  // One buffer per field: rows x field.row_bytes().
  std::vector<std::vector<std::byte>> fields;
  // The rows as they were asked for, so that an error can say which one is meant (RowSource::where).
  std::vector<std::uint64_t> ids;
  // Where they stand in the run, if that was said: as many rows in all.
  std::vector<SlotRun> runs;
};

// Work on the contents of a window that the reader's thread does once they are read, so that training need not wait for
// it. May throw; is called from that thread alone.
using RowWork = std::function<void(Window&)>;

class SampleReader {
 public:
  virtual ~SampleReader() = default;

  // Starts reading `rows` (each < source.rows; repeats allowed; may be empty). Collective in the sense that
  // every rank must ask for as many windows in the same order. At most two windows may be outstanding. `runs`, of as
  // many rows or empty, is for RowWork.
  void request(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs = {}) {
    ask(std::move(rows), std::move(runs));
  }

  // The oldest window asked for; blocks until it is read, at most timeout_s. Throws Error(input) when this
  // rank's read failed, Error(device) when its memory ran out, Error(communication) when the window did not
  // come in time.
  virtual Window take(double timeout_s) = 0;

 private:
  virtual void ask(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs) = 0;
};

// Rows of decoded blocks that a ShardReader keeps, unless told otherwise.
constexpr std::uint64_t default_cache_rows = 65536;

// Error(input) when this rank cannot open the source, or the first of its shards. Readers of shards open them
// when their rows are wanted: a file system that only some machines see is to be noticed before.
void check_reachable(const RowSource& source);

// The reader that `source` needs. Collective over `comm`, which is duplicated where the ranks read together;
// errors are those of the readers' constructors. `cache_rows`: see ShardReader. `work` is done on every window.
std::unique_ptr<SampleReader> make_reader(const RowSource& source, MPI_Comm comm, double timeout_s = 600,
                                          std::uint64_t cache_rows = default_cache_rows, RowWork work = {});

}  // namespace motley::io
