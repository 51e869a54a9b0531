// Gradients in device memory, summed over GPUs by NCCL and, where some ranks have none, over those by MPI.
//
// Buckets go to a stream of their own, each as soon as the backward pass has put it on its stream, so that
// they are summed beside what follows. With CPU ranks in the run:
//
//   GPU ranks        one ncclReduce per bucket to the group's rank 0, the leader
//   leader           copies the sum to host memory, and a thread hands it on
//   leader, CPUs     MPI_Iallreduce, as among CPU ranks (HostReducer)
//   leader           copies the result back to its device
//   GPU ranks        ncclBroadcast from the leader
//
// The broadcasts come after all reductions: NCCL wants the same order of calls on every rank.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/gradient_reducer.h"
#include "comm/host_reducer.h"
#include "comm/nccl/nccl_communicator.h"
#include "kernels/cuda/cuda.h"

namespace motley::comm {

class NcclReducer final : public GradientReducer {
 public:
  // What a rank needs to reach those without a GPU.
  struct Mixed {
    bool any_cpu_ranks = false;
    // Of the leader and the CPU ranks; the leader's alone.
    std::unique_ptr<Communicator> hosts;
  };

  // `gpus`: the ranks that have a GPU, of which this is one; `compute` gives the stream that writes gradients, with all
  // on it that was to come before, of the device that is current. Collective over the world.
  NcclReducer(std::unique_ptr<Communicator> gpus, Mixed mixed, std::function<cudaStream_t()> compute,
              std::size_t elements, std::size_t bucket_bytes, DType dtype);
  // Collective over the GPUs. After a failure it waits for nobody: what is under way is left behind.
  ~NcclReducer() override;

  void begin(View gradients) override;
  void ready_up_to(std::size_t elements) override;
  // What follows on the compute stream sees the sums.
  bool sent() const override { return sent_; }
  double finish() override;

 private:
  void connect();
  void post(std::size_t bucket);
  void sum_over_gpus(void* data, std::size_t count);
  void broadcast_from_leader(void* data, std::size_t count);
  void hand_on();
  void wait_for(cudaEvent_t event, std::size_t bucket);
  std::byte* bucket_data(std::size_t bucket) const;
  std::size_t bucket_elements(std::size_t bucket) const { return bucket_ends()[bucket] - bucket_begin(bucket); }

  std::unique_ptr<Communicator> gpus_;
  Mixed mixed_;
  std::unique_ptr<NcclCommunicator> nccl_;  // null: this is the only GPU
  std::function<cudaStream_t()> compute_;
  int device_ = 0;
  cuda::Stream stream_;
  std::vector<cuda::Event> ready_events_;   // by bucket: the gradients are there
  std::vector<cuda::Event> summed_events_;  // by bucket: they are summed over the GPUs, and copied to the host
  cuda::Event done_;
  View gradients_;
  std::size_t ready_ = 0, posted_ = 0;  // elements, buckets
  bool sent_ = false;
  bool in_step_ = false;

  // The leader of a mixed run.
  std::unique_ptr<cuda::PinnedBuffer> host_memory_;  // outlives what may still write to it
  std::unique_ptr<HostReducer> host_reducer_;
  std::mutex mutex_;  // for what follows
  std::condition_variable wake_;
  std::size_t to_hand_on_ = 0, handed_on_ = 0;  // buckets
  std::exception_ptr failure_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace motley::comm
