// The half of the window reader that runs in a thread of its own and talks to the other ranks.
//
// The thread and the reader's owner share one object, held by both: a thread that is stuck in a read, because
// a rank died, can be left behind without taking its memory away.
//
// The thread first opens the file together with the other ranks, which is a wait like the others: the owner
// looks on with a deadline.
//
// One window goes through these states: asked -> read on this rank alone (held fields, HDF5) -> met the other
// ranks -> collective reads -> done. A rank on which something fails, memory included, goes on through them
// with nothing to read, so that the others never wait for it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "core/error.h"
#include "io/field_reader.h"
#include "io/mpi_file.h"
#include "io/row_source.h"
#include "io/window_reader.h"

namespace motley::io {

class ReaderThread {
 public:
  ReaderThread(const RowSource& source, MPI_Comm parent);

  // The thread's function: opens the file, reads what is asked for until stop(), and closes the file. Until
  // it is open the thread communicates on `parent`, which nobody else may use meanwhile.
  void run() noexcept;

  // The owner's side.
  // False when the file is not open after timeout_s. Throws why it cannot be opened: AgreedError, on every
  // rank the same, unless the ranks could not talk to each other.
  bool wait_until_open(double timeout_s);
  void ask(std::vector<std::uint64_t> rows);
  struct Result {
    Window window;
    std::optional<Error> error;
  };
  // The oldest result; none when it is not there after timeout_s.
  std::optional<Result> wait_for_result(double timeout_s);
  void stop();
  // True once the thread has nothing left to do.
  bool wait_for_end(double timeout_s);
  // Stops waiting for the other ranks, which leaks the communicator and the open file.
  void give_up() { give_up_.store(true); }
  const char* doing() const { return doing_.load(); }
  const RowSource& source() const { return source_; }
  int rank() const { return rank_; }

 private:
  void open();
  // A window on its way. Made by the owner, so that the thread hands it on without needing memory.
  struct Job {
    std::vector<std::uint64_t> rows;
    Result result;
  };
  void read(Job& job) noexcept;
  void prepare(const std::vector<std::uint64_t>& asked, SortedRows& sorted, Window& window);
  void read_collective_fields(const SortedRows& sorted, Result& result) noexcept;
  void meet_other_ranks(const char* doing, bool to_read);
  void note_failure(Result& result) const noexcept;
  void check_lengths(const SortedRows& sorted) const;
  void shut_down() noexcept;

  RowSource source_;
  Error out_of_memory_, unknown_failure_;  // made while there is memory for a sentence
  MPI_Comm parent_;
  int rank_ = 0;
  std::unique_ptr<OwnCommunicator> comm_;
  std::unique_ptr<MpiFile> file_;
  std::vector<FieldReader> fields_;
  // What the ranks tell each other: passes by field, whether one reads, whether one ends.
  OwnCommunicator::Numbers numbers_;
  bool lost_ = false;  // the other ranks can no longer be talked to; used by the thread alone

  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::list<Job> asked_, done_;
  bool opened_ = false;
  std::exception_ptr open_failure_;
  bool stop_ = false;
  bool ended_ = false;

  std::atomic<bool> give_up_ = false;
  std::atomic<const char*> doing_ = "beginning";  // for the sentence about what did not come
};

}  // namespace motley::io
