// The GPUs that a program can use. A program built with CUDA brings a driver (kernels/cuda/gpu_driver.h); the
// rest of Motley knows GPUs by this header alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace motley {

struct GpuInfo {
  std::uint64_t id = 0;  // below 2^52; the same for the same card in every process of a host
  std::string name;
};

struct GpuOptions {
  std::size_t memory_limit_bytes = 0;  // 0: what is free on the device when it is opened, less a reserve
  // The same call gives the same bits in every run and on every device of one kind: convolutions keep to
  // algorithms that do.
  bool deterministic = false;
  bool graphs = false;  // stretches are run as CUDA graphs
};

class GpuDriver {
 public:
  virtual ~GpuDriver() = default;
  // Devices that this process may use (CUDA_VISIBLE_DEVICES and the batch system decide), none when there are
  // none. Error(device) when there are but the driver is too old for this program.
  virtual std::vector<GpuInfo> devices() const = 0;
  // Device number `device` of devices(), which becomes the current one of the calling thread. Error(device) when
  // it cannot be had, or when this program has no code for its architecture.
  virtual std::unique_ptr<Backend> open(int device, const GpuOptions& options) const = 0;
};

}  // namespace motley
