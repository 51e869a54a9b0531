// What CUDA adds to training. main() says how it is had; in a program that is built without CUDA nothing else
// differs.
#pragma once

#include <functional>
#include <memory>

#include "comm/communicator.h"
#include "comm/gradient_reducer.h"
#include "comm/small_sum.h"
#include "kernels/gpus.h"

namespace motley::train {

// Ranks that a GPU's rank sums with.
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
  // Sums of up to `most_values` float64 in the backend's memory. Collective over all ranks of the group.
  std::function<std::unique_ptr<comm::SmallSum>(GpuGroup group, Backend& backend, std::size_t most_values)>
      make_small_sum;
  // Of this process; must be the same on all ranks with GPUs. Error(communication) when NCCL does not answer.
  std::function<int()> nccl_version;
};

// How a program comes by its GpuSupport, which lives as long as the process. Null: this machine cannot have GPUs, or
// the program was built without CUDA; with `insist`, which somebody who wants a GPU says, Error(device) tells why.
using FindGpuSupport = const GpuSupport* (*)(bool insist);
void set_gpu_support(FindGpuSupport find);
const GpuSupport* find_gpu_support(bool insist);

}  // namespace motley::train
