// What a program that is built with CUDA adds to training. main() hands it over; in a program without, nothing
// else differs.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "kernels/gpus.h"

namespace motley::train {

// Ranks that a GPU's rank sums gradients with.
struct GpuGroup {
  std::unique_ptr<comm::Communicator> gpus;  // those that have a GPU, this one included
  bool any_cpu_ranks = false;
  // With CPU ranks, on the first of `gpus` alone: it and the CPU ranks.
  std::unique_ptr<comm::Communicator> hosts;
};

struct GpuSupport {
  const GpuDriver* driver = nullptr;
  // Sums arenas of the backend's device. Collective over all ranks of the group.
  std::function<std::unique_ptr<comm::GradientReducer>(GpuGroup group, Backend& backend, std::size_t elements,
                                                       std::size_t bucket_bytes, DType dtype)>
      make_reducer;
  // Of this process; must be the same on all ranks with GPUs. Error(communication) when NCCL does not answer.
  std::function<int()> nccl_version;
};

// Null: this program was built without CUDA.
const GpuSupport* gpu_support();
void set_gpu_support(const GpuSupport& support);

}  // namespace motley::train
