// Small sums in device memory, on the stream that computes: by NCCL over GPUs and, where some ranks have none, over those
// by MPI through the first of the GPUs, as NcclReducer does. The host waits for nothing but, on that one rank, for the
// copy that it hands on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "comm/host_sum.h"
#include "comm/nccl/nccl_communicator.h"
#include "kernels/cuda/cuda.h"

namespace motley::comm {

class NcclSum final : public SmallSum {
 public:
  // `gpus`: the ranks that have a GPU, of which this is one; `hosts`: of its first, where there are ranks without, it and
  // those; null on the others. `compute` is a stream of the device that is current. `most_values` that a call adds up.
  // Collective over the world.
  NcclSum(std::unique_ptr<Communicator> gpus, bool any_cpu_ranks, std::unique_ptr<Communicator> hosts,
          cudaStream_t compute, std::size_t most_values);
  // Collective over the GPUs. After a failure it waits for nobody.
  ~NcclSum() override;

  void add_up(View values, const char* what) override;
  void wait(const char* what) override;

 private:
  void connect();
  void to_leader(View values);
  void from_leader(View values);
  void record(const char* what);

  std::unique_ptr<Communicator> gpus_;
  std::unique_ptr<HostSum> hosts_;          // the leader of a mixed run
  std::unique_ptr<NcclCommunicator> nccl_;  // null: this is the only GPU
  bool any_cpu_ranks_;
  cudaStream_t compute_;
  // The sums since the last wait, so that each has the deadline for itself: what lies between them is work.
  struct UnderWay {
    cuda::Event done;
    std::string what;
  };
  std::vector<UnderWay> sums_;
  std::size_t under_way_ = 0;
  std::unique_ptr<cuda::PinnedBuffer> host_memory_;  // of the leader; outlives what may still write to it
};

}  // namespace motley::comm
