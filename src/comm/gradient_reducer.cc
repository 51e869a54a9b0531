#include "comm/gradient_reducer.h"

#include <algorithm>
#include <deque>

#include "comm/backoff.h"
#include "comm/mpi.h"
#include "core/error.h"

namespace motley::comm {
namespace {

// Elements: a cache line of float32, and whole vectors for the summing loop.
constexpr std::size_t cut_at = 16;
constexpr std::size_t most_in_flight = 4;

std::vector<std::size_t> cut_into_buckets(std::size_t elements, std::size_t bucket_bytes) {
  // MPI counts are ints, and the last bucket may be half as large again.
  const std::size_t most = std::min(bucket_bytes, Communicator::max_message_bytes) / sizeof(float);
  const std::size_t length = std::max(cut_at, most / cut_at * cut_at);
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  while (elements - end > length + length / 2) ends.push_back(end += length);
  if (end < elements) ends.push_back(elements);
  return ends;
}

}  // namespace

GradientReducer::GradientReducer(const Communicator& world, std::size_t elements, std::size_t bucket_bytes)
    : world_(world.handle(), world.timeout_s()), bucket_ends_(cut_into_buckets(elements, bucket_bytes)) {
  if (world_.size() > 1 && elements > 0) driver_ = std::thread([this] { drive(); });
}

GradientReducer::~GradientReducer() {
  if (!driver_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_driver_.notify_one();
  driver_.join();
}

void GradientReducer::begin(std::span<float> gradients) {
  MOTLEY_CHECK(!in_step_);
  MOTLEY_CHECK(gradients.size() == (bucket_ends_.empty() ? 0 : bucket_ends_.back()));
  const std::lock_guard lock(mutex_);
  in_step_ = true;
  gradients_ = gradients;
  ready_ = released_ = reduced_ = 0;
}

void GradientReducer::ready_up_to(std::size_t elements) {
  MOTLEY_CHECK(in_step_ && elements >= ready_ && elements <= gradients_.size());
  ready_ = elements;
  if (!driver_.joinable()) return;
  const auto whole = std::upper_bound(bucket_ends_.begin(), bucket_ends_.end(), elements);
  const auto released = static_cast<std::size_t>(whole - bucket_ends_.begin());
  {
    const std::lock_guard lock(mutex_);
    if (released == released_) return;
    released_ = released;
  }
  wake_driver_.notify_one();
}

double GradientReducer::finish() {
  ready_up_to(gradients_.size());
  in_step_ = false;
  if (!driver_.joinable()) return 0;
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  wake_owner_.wait(lock, [this] { return reduced_ == bucket_ends_.size() || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

MPI_Request GradientReducer::post(std::size_t bucket) {
  const std::size_t first = bucket == 0 ? 0 : bucket_ends_[bucket - 1];
  MPI_Request request = MPI_REQUEST_NULL;
  MOTLEY_MPI(MPI_Iallreduce(MPI_IN_PLACE, gradients_.data() + first,
                            static_cast<int>(bucket_ends_[bucket] - first), MPI_FLOAT, MPI_SUM,
                            world_.handle(), &request));
  return request;
}

// Sleeps until there is a bucket to post; while others are in flight, for no longer than `longest`. False:
// stop.
bool GradientReducer::wait_for_work(std::size_t in_flight, std::chrono::microseconds longest) {
  std::unique_lock lock(mutex_);
  const auto woken = [&] {
    return stop_ || (in_flight < most_in_flight && released_ > reduced_ + in_flight);
  };
  if (in_flight == 0) {
    wake_driver_.wait(lock, woken);
  } else if (longest.count() > 0) {
    wake_driver_.wait_for(lock, longest, woken);
  }
  return !stop_;
}

void GradientReducer::count_reduced(std::size_t buckets) {
  const std::lock_guard lock(mutex_);
  reduced_ += buckets;
  if (reduced_ == bucket_ends_.size()) wake_owner_.notify_one();
}

void GradientReducer::drive() {
  Backoff::use_precise_timer();
  std::deque<MPI_Request> in_flight;
  try {
    Backoff backoff;
    std::size_t done = 0;  // as reduced_, which only this thread moves within a step
    while (wait_for_work(in_flight.size(),
                         in_flight.empty() ? std::chrono::microseconds{0} : backoff.next_sleep())) {
      std::size_t released;
      {
        const std::lock_guard lock(mutex_);
        released = released_;
        done = reduced_;
      }
      while (in_flight.size() < most_in_flight && done + in_flight.size() < released) {
        in_flight.push_back(post(done + in_flight.size()));
        backoff.restart();
      }
      std::size_t finished = 0;
      for (int flag = 1; flag && !in_flight.empty();) {
        MOTLEY_MPI(MPI_Test(&in_flight.front(), &flag, MPI_STATUS_IGNORE));
        if (!flag) break;
        in_flight.pop_front();
        ++finished;
      }
      if (finished > 0) {
        count_reduced(finished);
        backoff.restart();
      } else if (backoff.waited_s() > world_.timeout_s()) {
        throw world_.late(fmt::format("gradient bucket {} of {}", done + 1, bucket_ends_.size()).c_str());
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    wake_owner_.notify_one();
  }
  if (!in_flight.empty()) world_.abandon();
}

}  // namespace motley::comm
