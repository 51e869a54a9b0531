// Simulated GPUs whose streams are as late as they can be, and two that draw the order of streams and threads.
#include "backend_test.h"
#include "device.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::test {

std::vector<BackendCase> backends() {
  const auto with_order = [](std::uint64_t order) {
    return [order] {
      sim::set_order(order);
      return cuda::gpu_driver().open(0, {});
    };
  };
  return {{"sim_late", with_order(1)}, {"sim_order_2", with_order(2)}, {"sim_order_3", with_order(3)}};
}

}  // namespace motley::test
