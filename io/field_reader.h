// How one rank gets the rows of one field: out of its memory, through HDF5, or by MPI-IO.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/hdf5_rows.h"
#include "io/mpi_file.h"
#include "io/row_plan.h"
#include "io/row_source.h"

namespace motley::io {

class FieldReader {
 public:
  // Rows of at most this many bytes cost more to look for in the file than to copy, ...
  static constexpr std::uint64_t tiny_row_bytes = 64;
  // ... so fields of such rows that take no more than this are read once, whole, and held: the labels of 4
  // million samples as int64.
  static constexpr std::uint64_t held_bytes_limit = 32 << 20;
  // Rows at most this far apart are read in one piece: the system reads whole pages anyway.
  static constexpr std::uint64_t gap_bytes = 4096;
  // The longest single read, well below what MPI can count in an int.
  static constexpr std::uint64_t pass_bytes = 256 << 20;

  // Opens what this field needs besides `mpi_file` and, if the field is to be held, reads it. Local.
  // Error(input).
  FieldReader(const RowSource& source, std::size_t index, MpiFile* mpi_file);

  // Whether fetching needs reads in which every rank takes part.
  bool collective() const { return !held() && hdf5_ == nullptr; }

  // Fields that are not collective: the rows into the places of `out` that want them.
  void read_locally(const SortedRows& wanted, std::byte* out);

  // Collective fields: prepare() on this rank alone, which throws before any rank waits for another; then as
  // many read_pass() as the rank with the most passes needs, on every rank; then check_length(), alone.
  void prepare(const SortedRows& wanted);
  // Forgets the passes: this rank takes part in the reads without reading anything.
  void skip() { passes_.clear(); }
  std::size_t passes() const { return passes_.size(); }
  void read_pass(std::size_t pass, const SortedRows& wanted, std::byte* out);
  // Error(input) naming the first wanted row that is not whole when the file has `file_bytes` bytes.
  void check_length(const SortedRows& wanted, std::uint64_t file_bytes) const;

  const Field& field() const { return field_; }

 private:
  bool held() const { return !held_.empty(); }

  std::string path_;
  Field field_;
  std::size_t row_bytes_;
  MpiFile* mpi_file_;
  std::unique_ptr<Hdf5Rows> hdf5_;
  std::vector<std::byte> held_;     // the whole field
  std::vector<ReadPass> passes_;    // of the window at hand
  std::vector<std::byte> staging_;  // kept between windows
};

}  // namespace motley::io
