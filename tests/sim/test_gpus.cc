#include "cuda_support.h"
#include "device.h"
#include "kernels/cuda/gpu_driver.h"
#include "support/gpus.h"

namespace motley::test {
namespace {

// Four cards on this host, for all tests of the program, unless MOTLEY_SIM_GPUS says otherwise.
const bool ready = [] {
  ::setenv("MOTLEY_SIM_GPUS", "4", 0);
  train::set_gpu_support([](bool) { return &cuda_support(); });
  return true;
}();

}  // namespace

int gpus_of_host() {
  static_cast<void>(ready);
  return static_cast<int>(cuda::gpu_driver().devices().size());
}

void set_gpu_order(std::uint64_t order) {
  static_cast<void>(ready);
  sim::set_order(order);
}

}  // namespace motley::test
