// Residuals, depthwise convolutions with squeeze and excitation, and channels that are split, joined and shuffled.
#include "half_networks.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley::test {

std::vector<HalfCase> half_cases() {
  std::vector<HalfCase> cases;
  for (const char* name : {"resnet18", "efficientnet_b0", "shufflenetv2_0.5"})
    for (const DType type : {DType::bf16, DType::f16}) cases.push_back({name, type});
  return cases;
}

std::unique_ptr<Backend> make_backend() {
  return cuda::gpu_driver().open(0, {});
}

}  // namespace motley::test
