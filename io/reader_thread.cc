#include "io/reader_thread.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "io/hdf5.h"
#include "io/row_plan.h"

namespace motley::io {
namespace {

}  // namespace

ReaderThread::ReaderThread(const RowSource& source, MPI_Comm parent, RowWork work)
    : ReadWorker(source, parent, std::move(work)), parent_(parent) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  MOTLEY_CHECK(level == MPI_THREAD_MULTIPLE);
}

void ReaderThread::open() {
  set_doing("waiting for the other ranks to come and open it");
  comm_ = std::make_unique<OwnCommunicator>(parent_, give_up_);
  const bool any_packed = std::any_of(source_.fields.begin(), source_.fields.end(),
                                      [](const Field& field) { return field.packed; });
  set_doing("opening it, or waiting for the other ranks to have opened it");
  // A rank that cannot open the file must be known before the collective open, which it would spoil for all
  // and which knows no deadline.
  comm_->agree([&] { open_hdf5(source_.path); });
  if (any_packed) {
    set_doing("in MPI_File_open");
    try {
      comm_->agree([&] { file_ = std::make_unique<MpiFile>(comm_->get(), source_.path); });
    } catch (const Error&) {
      // Closing is collective, and not every rank has the file open.
      if (file_) file_->abandon();
      throw;
    }
  }
  set_doing("reading what is held in memory, or waiting for the other ranks to have read it");
  comm_->agree([&] {
    for (std::size_t i = 0; i < source_.fields.size(); ++i) fields_.emplace_back(source_, i, file_.get());
  });
  numbers_ = std::make_unique<std::vector<int>>(fields_.size() + 2);
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
  set_doing("reading on this rank alone");
  check_rows(asked);
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

  set_doing("in MPI_File_read_all");
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
  set_doing(doing);
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
    if (!lost_ && !open_failed()) meet_other_ranks("waiting for the other ranks to close the file", false);
  } catch (...) {
    lost_ = true;
  }
  if (lost_) {
    if (comm_) comm_->abandon();
    if (file_) file_->abandon();
  }
  set_doing("closing the file");
  fields_.clear();
  file_.reset();
  comm_.reset();
}

}  // namespace motley::io
