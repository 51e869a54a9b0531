// What every reader has in common: a thread that reads the windows it is asked for, one after the other, and
// an owner that waits for them with a deadline.
//
// The thread and the owner share one ReadWorker, held by both: a thread that is stuck, because a rank died or
// a file system hangs, can be left behind without taking its memory away.
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
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "io/row_source.h"
#include "io/sample_reader.h"

namespace motley::io {

class ReadWorker {
 public:
  // `comm` says which rank this is; the base does not communicate. `work`, if any, is done on every window.
  ReadWorker(const RowSource& source, MPI_Comm comm, RowWork work);
  virtual ~ReadWorker() = default;
  ReadWorker(const ReadWorker&) = delete;
  ReadWorker& operator=(const ReadWorker&) = delete;

  // The thread's function: opens, reads what is asked for until stop(), and shuts down.
  void run() noexcept;

  // The owner's side.
  // False when the files are not open after timeout_s. Throws why they cannot be opened.
  bool wait_until_open(double timeout_s);
  void ask(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs);
  struct Result {
    Window window;
    std::optional<Error> error;
  };
  // The oldest result; none when it is not there after timeout_s.
  std::optional<Result> wait_for_result(double timeout_s);
  void stop();
  // True once the thread has nothing left to do.
  bool wait_for_end(double timeout_s);
  // Gives up waiting for other ranks.
  void give_up() { give_up_.store(true); }
  const char* doing() const { return doing_.load(); }
  const RowSource& source() const { return source_; }
  int rank() const { return rank_; }

 protected:
  // A window on its way. Made by the owner, so that the thread hands it on without needing memory.
  struct Job {
    std::vector<std::uint64_t> rows;
    std::vector<SlotRun> runs;
    Result result;
  };
  // The three things that readers do differently, in the thread. When open() has thrown, only shut_down() is
  // called.
  virtual void open() = 0;
  virtual void read(Job& job) noexcept = 0;
  virtual void shut_down() noexcept = 0;

  // The exception at hand becomes the result, unless there was one before.
  void note_failure(Result& result) const noexcept;
  // Error(internal) for a row that the source does not have.
  void check_rows(const std::vector<std::uint64_t>& rows) const;
  bool open_failed() const { return open_failure_ != nullptr; }
  void set_doing(const char* what) { doing_ = what; }

  const RowSource source_;
  int rank_ = 0;
  bool lost_ = false;  // the other ranks can no longer be talked to; used by the thread alone
  std::atomic<bool> give_up_ = false;

 private:
  void look_at(Job& job) const noexcept;

  const RowWork work_;
  Error out_of_memory_, unknown_failure_;  // made while there is memory for a sentence

  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::list<Job> asked_, done_;
  bool opened_ = false;
  std::exception_ptr open_failure_;
  bool stop_ = false;
  bool ended_ = false;

  std::atomic<const char*> doing_ = "beginning";  // for the sentence about what did not come
};

// The owner of a worker: starts its thread, counts windows, and does not wait for ever when it goes.
class ReadOwner {
 public:
  // Error(communication) when the worker has not opened its files after timeout_s.
  ReadOwner(std::shared_ptr<ReadWorker> worker, double timeout_s);
  ~ReadOwner();
  ReadOwner(const ReadOwner&) = delete;
  ReadOwner& operator=(const ReadOwner&) = delete;

  void request(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs);
  Window take(double timeout_s);

 private:
  void leave();

  std::shared_ptr<ReadWorker> worker_;
  std::thread thread_;
  std::size_t outstanding_ = 0;
  std::uint64_t taken_ = 0;
  double shutdown_s_;
};

}  // namespace motley::io
