// The first GPU of the machine, as it is used by default and with --deterministic.
#include "backend_test.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::test {

std::vector<BackendCase> backends() {
  return {{"gpu", [] { return cuda::gpu_driver().open(0, {}); }},
          {"gpu_deterministic", [] { return cuda::gpu_driver().open(0, {.deterministic = true}); }}};
}

}  // namespace motley::test
