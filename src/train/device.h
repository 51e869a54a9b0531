// The device of this rank.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "kernels/backend.h"

namespace motley::train {

struct DeviceOptions {
  std::string device = "auto";  // auto: a GPU where this process sees one; cpu; cuda
  int threads = 0;              // of a CPU; 0: this rank's part of the processors that it may use
  bool deterministic = false;   // see GpuOptions
  bool cuda_graph = false;      // on a GPU: likewise
};

// The backend of this rank. The ranks of a host that take GPUs take one each, in the order of their ranks, the
// first of those that they see which no other has; it is an error when there are fewer. CPU ranks of a host
// have equal parts of what the others leave of its processors and its memory (comm::threads_per_rank,
// comm::memory_per_cpu_rank). Ranks may have different options. Collective;
// AgreedError(device) when some device cannot be had.
std::unique_ptr<Backend> make_backend(const DeviceOptions& options, const comm::Communicator& world);

// "2 rank(s) on NVIDIA H100 and 2 on AMD EPYC with 1 thread(s) each". Collective.
std::string devices_text(const Backend& backend, const comm::Communicator& world);

// AgreedError(usage) unless all ranks can compute in this precision. Collective.
void check_precision(const std::string& precision, const Backend& backend, const comm::Communicator& world);

}  // namespace motley::train
