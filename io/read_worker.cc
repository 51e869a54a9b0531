#include "io/read_worker.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "core/log.h"
#include "io/bert_check.h"

namespace motley::io {
namespace {

using Clock = std::chrono::steady_clock;

// More than this is not waited for when a reader goes, whatever time-out take() was given.
constexpr double longest_shutdown_s = 60;
constexpr double grace_s = 2;
constexpr std::size_t outstanding_limit = 2;

}  // namespace

ReadWorker::ReadWorker(const RowSource& source, MPI_Comm comm, RowWork work)
    : source_(source),
      work_(std::move(work)),
      out_of_memory_(ExitCode::device,
                     fmt::format("reading {}: the memory of this machine ran out", source.path)),
      unknown_failure_(ExitCode::internal,
                       fmt::format("reading {}: something was thrown that is no exception", source.path)) {
  MPI_Comm_rank(comm, &rank_);
}

void ReadWorker::run() noexcept {
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
    look_at(job.front());
    const std::lock_guard lock(mutex_);
    done_.splice(done_.end(), job);
    changed_.notify_all();
  }
  shut_down();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

// What the rows hold, where that was not looked at when they were read; then the work that is to be done on them.
void ReadWorker::look_at(Job& job) const noexcept {
  job.result.window.ids = std::move(job.rows);
  job.result.window.runs = std::move(job.runs);
  if (job.result.error) return;
  try {
    if (source_.bert) check_bert_rows(source_, job.result.window);
    if (work_) work_(job.result.window);
  } catch (...) {
    note_failure(job.result);
  }
}

// Copying an Error needs no memory.
void ReadWorker::note_failure(Result& result) const noexcept {
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

void ReadWorker::check_rows(const std::vector<std::uint64_t>& rows) const {
  for (const std::uint64_t row : rows) {
    if (row >= source_.rows) {
      fail(ExitCode::internal, "this is a bug in motley: row {} of {} was asked for, which has {}", row,
           source_.path, source_.rows);
    }
  }
}

// --- The owner's side -------------------------------------------------------------------------------------

bool ReadWorker::wait_until_open(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  if (!changed_.wait_until(lock, deadline, [this] { return opened_; })) return false;
  if (open_failure_) std::rethrow_exception(open_failure_);
  return true;
}

void ReadWorker::ask(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs) {
  const std::lock_guard lock(mutex_);
  Job& job = asked_.emplace_back();
  job.rows = std::move(rows);
  job.runs = std::move(runs);
  changed_.notify_all();
}

std::optional<ReadWorker::Result> ReadWorker::wait_for_result(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  if (!changed_.wait_until(lock, deadline, [this] { return !done_.empty(); })) return std::nullopt;
  Result result = std::move(done_.front().result);
  done_.pop_front();
  return result;
}

void ReadWorker::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

bool ReadWorker::wait_for_end(double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s);
  return changed_.wait_until(lock, deadline, [this] { return ended_; });
}

ReadOwner::ReadOwner(std::shared_ptr<ReadWorker> worker, double timeout_s)
    : worker_(std::move(worker)), shutdown_s_(longest_shutdown_s) {
  thread_ = std::thread([shared = worker_] { shared->run(); });
  try {
    if (worker_->wait_until_open(timeout_s)) return;
    shutdown_s_ = 0;
    fail(ExitCode::communication, "rank {}: {} was not opened within {:g} s: the reader is still {}",
         worker_->rank(), worker_->source().path, timeout_s, worker_->doing());
  } catch (...) {
    leave();  // an object whose constructor throws is not destroyed
    throw;
  }
}

ReadOwner::~ReadOwner() {
  // A run that has failed does not wait for what another rank may never come to read.
  if (std::uncaught_exceptions() > 0) shutdown_s_ = std::min(shutdown_s_, grace_s);
  leave();
}

void ReadOwner::leave() {
  worker_->stop();
  if (!worker_->wait_for_end(shutdown_s_)) {
    worker_->give_up();
    if (!worker_->wait_for_end(grace_s)) {
      log::warn("the reader of {} is left behind: it is still {}", worker_->source().path, worker_->doing());
      thread_.detach();
      return;
    }
  }
  thread_.join();
}

void ReadOwner::request(std::vector<std::uint64_t> rows, std::vector<SlotRun> runs) {
  MOTLEY_CHECK(outstanding_ < outstanding_limit);
  ++outstanding_;
  worker_->ask(std::move(rows), std::move(runs));
}

Window ReadOwner::take(double timeout_s) {
  MOTLEY_CHECK(outstanding_ > 0);
  std::optional<ReadWorker::Result> result = worker_->wait_for_result(timeout_s);
  if (!result) {
    // Whoever did not come for this window will not come for the end either.
    shutdown_s_ = grace_s;
    fail(ExitCode::communication,
         "rank {}: window {} of {} was not read within {:g} s: the reader is still {}", worker_->rank(),
         taken_, worker_->source().path, timeout_s, worker_->doing());
  }
  --outstanding_;
  ++taken_;
  shutdown_s_ = std::min(timeout_s, longest_shutdown_s);
  if (result->error) throw *result->error;
  return std::move(result->window);
}

}  // namespace motley::io
