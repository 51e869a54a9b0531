// Sums gradients over ranks while the backward pass is still running.
//
// The gradient arena is laid out in the order in which the backward pass finishes parameters, and is cut into
// buckets. When the backward pass has finished everything up to some element it says so by ready_up_to(), and
// every bucket that lies wholly below is summed by MPI_Iallreduce, driven by a thread of this object on a
// communicator of its own. The thread sleeps when there is nothing to drive and backs off while it polls, so
// that it costs little on a machine with more ranks than cores.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
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
  // leave a tiny one behind. Collective over `world`.
  GradientReducer(const Communicator& world, std::size_t elements, std::size_t bucket_bytes);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  std::size_t buckets() const { return bucket_ends_.size(); }

  // Starts a step over `gradients` (host memory, `elements` long), which this object sums in place.
  void begin(std::span<float> gradients);
  // The first `elements` gradients are final on this rank. Never blocks.
  void ready_up_to(std::size_t elements);
  // Marks everything as ready, waits until all buckets are summed, and returns the seconds it blocked. Throws
  // Error(communication) when the deadline passes, naming the bucket.
  double finish();

 private:
  void drive();

  Communicator world_;
  std::vector<std::size_t> bucket_ends_;
  std::span<float> gradients_;

  std::mutex mutex_;
  std::condition_variable wake_driver_, wake_owner_;
  std::size_t next_bucket_ = 0;  // the first that ready_up_to has not released yet
  std::size_t released_ = 0;     // buckets that the driver may reduce
  std::size_t reduced_ = 0;      // buckets that are done
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread driver_;
};

}  // namespace motley::comm
