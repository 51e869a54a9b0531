#include "io/window_reader.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "io/reader_thread.h"

namespace motley::io {

struct WindowReader::Impl {
  // More than this is not waited for when the reader goes, whatever time-out take() was given.
  static constexpr double longest_shutdown_s = 60;
  static constexpr double grace_s = 2;
  static constexpr std::size_t outstanding_limit = 2;

  Impl() = default;
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::shared_ptr<ReaderThread> shared;
  std::thread thread;
  std::size_t outstanding = 0;
  std::uint64_t taken = 0;
  double shutdown_s = longest_shutdown_s;
};

WindowReader::Impl::~Impl() {
  if (!thread.joinable()) return;
  shared->stop();
  if (!shared->wait_for_end(shutdown_s)) {
    shared->give_up();
    if (!shared->wait_for_end(grace_s)) {
      log::warn("the reader of {} is left behind: it is still {}", shared->source().path, shared->doing());
      thread.detach();
      return;
    }
  }
  thread.join();
}

WindowReader::WindowReader(const RowSource& source, MPI_Comm parent, double timeout_s)
    : impl_(std::make_unique<Impl>()) {
  impl_->shared = std::make_shared<ReaderThread>(source, parent);
  impl_->thread = std::thread([shared = impl_->shared] { shared->run(); });
  if (impl_->shared->wait_until_open(timeout_s)) return;
  impl_->shutdown_s = 0;
  fail(ExitCode::communication, "rank {}: {} was not opened within {:g} s: the reader is still {}",
       impl_->shared->rank(), source.path, timeout_s, impl_->shared->doing());
}

WindowReader::~WindowReader() = default;

void WindowReader::request(std::vector<std::uint64_t> rows) {
  MOTLEY_CHECK(impl_->outstanding < Impl::outstanding_limit);
  ++impl_->outstanding;
  impl_->shared->ask(std::move(rows));
}

Window WindowReader::take(double timeout_s) {
  MOTLEY_CHECK(impl_->outstanding > 0);
  std::optional<ReaderThread::Result> result = impl_->shared->wait_for_result(timeout_s);
  if (!result) {
    // Whoever did not come for this window will not come for the end either.
    impl_->shutdown_s = Impl::grace_s;
    fail(ExitCode::communication,
         "rank {}: window {} of {} was not read within {:g} s: the reader is still {}", impl_->shared->rank(),
         impl_->taken, impl_->shared->source().path, timeout_s, impl_->shared->doing());
  }
  --impl_->outstanding;
  ++impl_->taken;
  impl_->shutdown_s = std::min(timeout_s, Impl::longest_shutdown_s);
  if (result->error) throw *result->error;
  return std::move(result->window);
}

}  // namespace motley::io
