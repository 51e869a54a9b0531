#include "cuda_support.h"
#include "kernels/cuda/gpu_driver.h"
#include "support/gpus.h"

namespace motley::test {
namespace {

const bool ready = [] {
  train::set_gpu_support([](bool) { return &cuda_support(); });
  return true;
}();

}  // namespace

int gpus_of_host() {
  static_cast<void>(ready);
  return static_cast<int>(cuda::gpu_driver().devices().size());
}

void set_gpu_order(std::uint64_t) {}

}  // namespace motley::test
