// Gradients in host memory, summed by MPI_Iallreduce.
//
// A thread of this object drives the sums on a communicator of its own. It sleeps when there is nothing to
// drive and backs off while it polls, so that it costs little on a machine with more ranks than cores. With
// one rank there is no thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"

namespace motley::comm {

class HostReducer final : public GradientReducer {
 public:
  // Collective over `world`.
  HostReducer(const Communicator& world, std::size_t elements, std::size_t bucket_bytes,
              DType dtype = DType::f32);
  // Leaves alone what is still being summed, which happens only after a failure.
  ~HostReducer() override;

  void begin(View gradients) override;
  void ready_up_to(std::size_t elements) override;
  bool sent() const override { return driver_.joinable() && whole_buckets(ready_) > 0; }
  double finish() override;

 private:
  void drive();
  bool wait_for_work(std::size_t in_flight, std::chrono::microseconds longest);
  void count_reduced(std::size_t buckets);
  MPI_Request post(std::size_t bucket);

  Communicator world_;
  MPI_Datatype type_ = MPI_FLOAT;
  MPI_Op sum_ = MPI_SUM;
  View gradients_;
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
