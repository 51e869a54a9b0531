// The half of the window reader that runs in a thread of its own and talks to the other ranks.
//
// The thread first opens the file together with the other ranks, which is a wait like the others: the owner
// looks on with a deadline.
//
// One window goes through these states: asked -> read on this rank alone (held fields, HDF5) -> met the other
// ranks -> collective reads -> done. A rank on which something fails, memory included, goes on through them
// with nothing to read, so that the others never wait for it.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "io/field_reader.h"
#include "io/mpi_file.h"
#include "io/read_worker.h"
#include "io/row_source.h"

namespace motley::io {

class ReaderThread final : public ReadWorker {
 public:
  // Until the file is open the thread communicates on `parent`, which nobody else may use meanwhile. Failing
  // to open is an AgreedError, on every rank the same, unless the ranks could not talk to each other.
  ReaderThread(const RowSource& source, MPI_Comm parent, RowWork work);

 private:
  void open() override;
  void read(Job& job) noexcept override;
  void shut_down() noexcept override;
  void prepare(const std::vector<std::uint64_t>& asked, SortedRows& sorted, Window& window);
  void read_collective_fields(const SortedRows& sorted, Result& result) noexcept;
  void meet_other_ranks(const char* doing, bool to_read);
  void check_lengths(const SortedRows& sorted) const;

  MPI_Comm parent_;
  std::unique_ptr<OwnCommunicator> comm_;
  std::unique_ptr<MpiFile> file_;
  std::vector<FieldReader> fields_;
  // What the ranks tell each other: passes by field, whether one reads, whether one ends.
  OwnCommunicator::Numbers numbers_;
};

}  // namespace motley::io
