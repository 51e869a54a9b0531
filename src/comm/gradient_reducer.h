// Sums gradients over ranks while the backward pass is still running.
//
// The gradient arena is laid out in the order in which the backward pass finishes parameters, and is cut into
// buckets. When the backward pass has finished everything up to some element it says so by ready_up_to(), and
// every bucket that lies wholly below is summed by MPI_Iallreduce, driven by a thread of this object on a
// communicator of its own. The thread sleeps when there is nothing to drive and backs off while it polls, so
// that it costs little on a machine with more ranks than cores. With one rank there is no thread.
//
// The sums have the same bits on every rank, and for the same arena, buckets and ranks the same bits in every
// run, whenever the buckets become ready: each is summed by one call on its own, in an order that MPI derives
// from the number of ranks and of elements.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace motley::comm {

class GradientReducer {
 public:
  // `bucket_bytes`: no bucket is larger, except that the last may be up to half as large again rather than
  // leave a tiny one behind, and that no bucket is smaller than 16 elements; buckets are cut at multiples of
  // 16 elements. Collective over `world`.
  GradientReducer(const Communicator& world, std::size_t elements, std::size_t bucket_bytes);
  // Leaves alone what is still being summed, which happens only after a failure.
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  std::size_t buckets() const { return bucket_ends_.size(); }
  // bucket_ends()[i]: one past the last element of bucket i.
  std::span<const std::size_t> bucket_ends() const { return bucket_ends_; }

  // Starts a step over `gradients` (host memory, `elements` long), which this object sums in place. The step
  // before must be finished.
  void begin(std::span<float> gradients);
  // The first `elements` gradients are final on this rank; never fewer than said before in this step. Never
  // blocks.
  void ready_up_to(std::size_t elements);
  // Marks everything as ready, waits until all buckets are summed, and returns the seconds it blocked. Throws
  // Error(communication) when the deadline passes, naming the bucket; the object is of no use after that, and
  // the gradients must live until the process ends (see Communicator).
  double finish();

 private:
  void drive();
  bool wait_for_work(std::size_t in_flight, std::chrono::microseconds longest);
  void count_reduced(std::size_t buckets);
  MPI_Request post(std::size_t bucket);

  Communicator world_;
  std::vector<std::size_t> bucket_ends_;
  std::span<float> gradients_;
  std::size_t ready_ = 0;  // elements
  bool in_step_ = false;

  std::mutex mutex_;  // for what follows, and for the driver to see gradients_
  std::condition_variable wake_driver_, wake_owner_;
  std::size_t released_ = 0;  // buckets that the driver may reduce
  std::size_t reduced_ = 0;   // buckets that are done
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread driver_;
};

}  // namespace motley::comm
