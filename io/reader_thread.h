// The half of the window reader that runs in a thread of its own and talks to the other ranks.
//
// The thread and the reader's owner share one object, held by both: a thread that is stuck in a read, because
// a rank died, can be left behind without taking its memory away.
//
// One window goes through these states: asked -> read on this rank alone (held fields, HDF5) -> met the other
// ranks -> collective reads -> done. A rank on which something fails goes on through them with nothing to
// read, so that the others never wait for it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
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
  // Collective: opens the file on every rank, or throws the same Error on every rank.
  ReaderThread(const RowSource& source, MPI_Comm parent);

  // The thread's function: reads what is asked for until stop() and closes the file.
  void run();

  // The owner's side.
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
  Result read(const std::vector<std::uint64_t>& asked);
  void prepare(const std::vector<std::uint64_t>& asked, SortedRows& sorted, Window& window);
  void read_collective_fields(const SortedRows& sorted, Result& result);
  void meet_other_ranks(const char* doing, bool to_read, std::vector<int>& passes);
  void check_lengths(const SortedRows& sorted) const;
  void shut_down();

  RowSource source_;
  std::unique_ptr<OwnCommunicator> comm_;
  int rank_ = 0;
  std::unique_ptr<MpiFile> file_;
  std::vector<FieldReader> fields_;
  bool lost_ = false;  // the other ranks can no longer be talked to; used by the thread alone

  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::deque<std::vector<std::uint64_t>> asked_;
  std::deque<Result> done_;
  bool stop_ = false;
  bool ended_ = false;

  std::atomic<bool> give_up_ = false;
  std::atomic<const char*> doing_ =
      "waiting to be asked";  // for the sentence about a window that did not come
};

}  // namespace motley::io
