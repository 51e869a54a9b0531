#include "io/reader_thread.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "io/hdf5.h"
#include "io/row_plan.h"

namespace motley::io {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ReaderThread::ReaderThread(const RowSource& source, MPI_Comm parent)
    : source_(source),
      out_of_memory_(ExitCode::device,
                     fmt::format("reading {}: the memory of this machine ran out", source.path)),
      unknown_failure_(ExitCode::internal,
                       fmt::format("reading {}: something was thrown that is no exception", source.path)),
      parent_(parent) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  MOTLEY_CHECK(level == MPI_THREAD_MULTIPLE);
  MPI_Comm_rank(parent_, &rank_);
}

void ReaderThread::open() {
  doing_ = "waiting for the other ranks to come and open it";
  comm_ = std::make_unique<OwnCommunicator>(parent_, give_up_);
  const bool any_packed = std::any_of(source_.fields.begin(), source_.fields.end(),
                                      [](const Field& field) { return field.packed; });
  doing_ = "opening it, or waiting for the other ranks to have opened it";
  // A rank that cannot open the file must be known before the collective open, which it would spoil for all
  // and which knows no deadline.
  comm_->agree([&] { open_hdf5(source_.path); });
  if (any_packed) {
    doing_ = "in MPI_File_open";
    try {
      comm_->agree([&] { file_ = std::make_unique<MpiFile>(comm_->get(), source_.path); });
    } catch (const Error&) {
      // Closing is collective, and not every rank has the file open.
      if (file_) file_->abandon();
      throw;
    }
  }
  doing_ = "reading what is held in memory, or waiting for the other ranks to have read it";
  comm_->agree([&] {
    for (std::size_t i = 0; i < source_.fields.size(); ++i) fields_.emplace_back(source_, i, file_.get());
  });
  numbers_ = std::make_unique<std::vector<int>>(fields_.size() + 2);
}

void ReaderThread::run() noexcept {
  std::exception_ptr open_failure;
  try {
    open();
  } catch (const AgreedError&) {
    open_failure = std::current_exception();
  } catch (...) {
    open_failure = std::current_exception();
    lost_ = true;
  }
  {
    const std::lock_guard lock(mutex_);
    opened_ = true;
    open_failure_ = open_failure;
    if (open_failure_) stop_ = true;
    changed_.notify_all();
  }
  while (true) {
    std::list<Job> job;
    {
      std::unique_lock lock(mutex_);
      doing_ = "waiting to be asked";
      changed_.wait(lock, [this] { return stop_ || !asked_.empty(); });
      // What was asked for is read even when nobody will take it: the other ranks count on this one taking
      // part.
      if (asked_.empty()) break;
      job.splice(job.begin(), asked_, asked_.begin());
    }
    read(job.front());
    const std::lock_guard lock(mutex_);
    done_.splice(done_.end(), job);
    changed_.notify_all();
  }
  shut_down();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// The exception at hand becomes the result, unless there was one before. Copying an Error needs no memory.
void ReaderThread::note_failure(Result& result) const noexcept {
  if (result.error) return;
  try {
    throw;
  } catch (const Error& error) {
    result.error = error;
  } catch (const std::bad_alloc&) {
    result.error = out_of_memory_;
  } catch (const std::exception& error) {
    try {
      result.error.emplace(ExitCode::internal, fmt::format("reading {}: {}", source_.path, error.what()));
    } catch (...) {
      result.error = out_of_memory_;
    }
  } catch (...) {
    result.error = unknown_failure_;
  }
}

void ReaderThread::read(Job& job) noexcept {
  SortedRows sorted;
  try {
    prepare(job.rows, sorted, job.result.window);
  } catch (...) {
    note_failure(job.result);
    for (FieldReader& field : fields_) field.skip();
  }
  read_collective_fields(sorted, job.result);
}

// Everything that can fail on this rank alone, memory included.
void ReaderThread::prepare(const std::vector<std::uint64_t>& asked, SortedRows& sorted, Window& window) {
  doing_ = "reading on this rank alone";
  for (const std::uint64_t row : asked) {
    if (row >= source_.rows) {
      fail(ExitCode::internal, "this is a bug in motley: row {} of {} was asked for, which has {}", row,
           source_.path, source_.rows);
    }
  }
  sorted = sort_rows(asked);
  window.rows = asked.size();
  for (const FieldReader& field : fields_)
    window.fields.emplace_back(asked.size() * field.field().row_bytes());
  check_lengths(sorted);
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    if (fields_[i].collective()) {
      fields_[i].prepare(sorted);
    } else {
      fields_[i].read_locally(sorted, window.fields[i].data());
    }
  }
}

void ReaderThread::read_collective_fields(const SortedRows& sorted, Result& result) noexcept {
  const bool any_collective = std::any_of(fields_.begin(), fields_.end(),
                                          [](const FieldReader& field) { return field.collective(); });
  if (!any_collective) return;
  try {
    if (lost_) {
      fail(ExitCode::communication, "the window reader lost contact with the other ranks earlier");
    }
    meet_other_ranks("waiting for the other ranks to begin the same window", true);
  } catch (...) {
    lost_ = true;
    return note_failure(result);
  }

  doing_ = "in MPI_File_read_all";
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    const int passes = (*numbers_)[i];
    for (int pass = 0; pass < passes; ++pass) {
      try {
        fields_[i].read_pass(static_cast<std::size_t>(pass), sorted,
                             result.error ? nullptr : result.window.fields[i].data());
      } catch (...) {
        note_failure(result);
        for (FieldReader& field : fields_) field.skip();
      }
    }
  }
  try {
    check_lengths(sorted);
  } catch (...) {
    note_failure(result);
  }
}

// Ranks begin a window at different times; those that come early nap here rather than spin inside a
// collective read. Every rank leaves with the largest number of passes that any rank needs, per field. The
// end is met in the same way and with the same message, so that a rank that ends while others still read is
// noticed by all instead of pairing one collective call with another.
void ReaderThread::meet_other_ranks(const char* doing, bool to_read) {
  doing_ = doing;
  for (std::size_t i = 0; i < fields_.size(); ++i) {
    (*numbers_)[i] = to_read ? static_cast<int>(fields_[i].passes()) : 0;
  }
  int* const votes = numbers_->data() + fields_.size();
  votes[0] = to_read ? 1 : 0;
  votes[1] = to_read ? 0 : 1;
  comm_->all_reduce(numbers_, MPI_MAX);
  if (votes[0] != 0 && votes[1] != 0) {
    fail(ExitCode::communication, "{}: a rank closed its reader while another still asked for a window",
         source_.path);
  }
}

// A collective read may claim the length that was asked for when it got less, so the length of the file is
// compared before and after: before spares the read, after catches a file that is cut short meanwhile.
void ReaderThread::check_lengths(const SortedRows& sorted) const {
  if (file_ == nullptr) return;
  const std::uint64_t file_bytes = file_->size();
  for (const FieldReader& field : fields_) {
    if (field.collective()) field.check_length(sorted, file_bytes);
  }
}

void ReaderThread::shut_down() noexcept {
  try {
    // After an agreed failure to open there is nothing that the ranks could still do differently.
    if (!lost_ && !open_failure_) meet_other_ranks("waiting for the other ranks to close the file", false);
  } catch (...) {
    lost_ = true;
  }
  if (lost_) {
    if (comm_) comm_->abandon();
    if (file_) file_->abandon();
  }
  doing_ = "closing the file";
  fields_.clear();
  file_.reset();
  comm_.reset();
}

// --- The owner's side -------------------------------------------------------------------------------------

bool ReaderThread::wait_until_open(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  if (!changed_.wait_until(lock, deadline, [this] { return opened_; })) return false;
  if (open_failure_) std::rethrow_exception(open_failure_);
  return true;
}

void ReaderThread::ask(std::vector<std::uint64_t> rows) {
  const std::lock_guard lock(mutex_);
  asked_.emplace_back().rows = std::move(rows);
  changed_.notify_all();
}

std::optional<ReaderThread::Result> ReaderThread::wait_for_result(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  if (!changed_.wait_until(lock, deadline, [this] { return !done_.empty(); })) return std::nullopt;
  Result result = std::move(done_.front().result);
  done_.pop_front();
  return result;
}

void ReaderThread::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

bool ReaderThread::wait_for_end(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  return changed_.wait_until(lock, deadline, [this] { return ended_; });
}

}  // namespace motley::io
