#include "comm/host_reducer.h"

#include <deque>

#include "comm/backoff.h"
#include "comm/liveness.h"
#include "comm/mpi.h"
#include "core/bfloat16.h"
#include "core/error.h"

namespace motley::comm {
namespace {

constexpr std::size_t most_in_flight = 4;

// MPI has no bfloat16: two bytes each, summed by this, in float32, and rounded.
void sum_bfloat16(void* from, void* to, int* count, MPI_Datatype*) {
  const auto* in = static_cast<const Bf16*>(from);
  auto* out = static_cast<Bf16*>(to);
  for (int i = 0; i < *count; ++i) out[i] = from_float<Bf16>(to_float(in[i]) + to_float(out[i]));
}

}  // namespace

HostReducer::HostReducer(const Communicator& world, std::size_t elements, std::size_t bucket_bytes,
                         DType dtype)
    : GradientReducer(elements, bucket_bytes, dtype), world_(world.handle(), world.timeout_s()) {
  world_.speak_as(world.spoken_rank());
  if (dtype == DType::bf16) {
    MOTLEY_MPI(MPI_Type_contiguous(2, MPI_BYTE, &type_));
    MOTLEY_MPI(MPI_Type_commit(&type_));
    MOTLEY_MPI(MPI_Op_create(sum_bfloat16, 1, &sum_));
  }
  if (world_.size() > 1 && elements > 0) driver_ = std::thread([this] { drive(); });
}

HostReducer::~HostReducer() {
  if (driver_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_driver_.notify_one();
    driver_.join();
  }
  // After a failure a sum may still use them.
  if (dtype() != DType::bf16 || failure_) return;
  MPI_Op_free(&sum_);
  MPI_Type_free(&type_);
}

void HostReducer::begin(View gradients) {
  MOTLEY_CHECK(!in_step_ || !sent());
  MOTLEY_CHECK(gradients.dtype == dtype() && static_cast<std::size_t>(gradients.elements()) == elements());
  const std::lock_guard lock(mutex_);
  in_step_ = true;
  gradients_ = gradients;
  ready_ = released_ = reduced_ = 0;
}

void HostReducer::ready_up_to(std::size_t ready) {
  MOTLEY_CHECK(in_step_ && ready >= ready_ && ready <= elements());
  ready_ = ready;
  if (!driver_.joinable()) return;
  const std::size_t released = whole_buckets(ready);
  {
    const std::lock_guard lock(mutex_);
    if (released == released_) return;
    released_ = released;
  }
  wake_driver_.notify_one();
}

double HostReducer::finish() {
  ready_up_to(elements());
  in_step_ = false;
  if (!driver_.joinable()) return 0;
  const auto start = std::chrono::steady_clock::now();
  const WaitMark mark("the gradients of the others");
  std::unique_lock lock(mutex_);
  wake_owner_.wait(lock, [this] { return reduced_ == buckets() || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

MPI_Request HostReducer::post(std::size_t bucket) {
  const std::size_t first = bucket_begin(bucket);
  auto* const data = static_cast<std::byte*>(gradients_.data) + first * size_of(dtype());
  MPI_Request request = MPI_REQUEST_NULL;
  MOTLEY_MPI(MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(bucket_ends()[bucket] - first), type_, sum_,
                            world_.handle(), &request));
  return request;
}

// Sleeps until there is a bucket to post; while others are in flight, for no longer than `longest`. False:
// stop.
bool HostReducer::wait_for_work(std::size_t in_flight, std::chrono::microseconds longest) {
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

void HostReducer::count_reduced(std::size_t newly) {
  const std::lock_guard lock(mutex_);
  reduced_ += newly;
  if (reduced_ == buckets()) wake_owner_.notify_one();
}

void HostReducer::drive() {
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
      } else if (deadline_passed(backoff.waited_s(), world_.timeout_s())) {
        throw world_.late(fmt::format("gradient bucket {} of {}", done + 1, buckets()).c_str());
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
