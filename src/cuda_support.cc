#include "cuda_support.h"

#include <utility>

#include "comm/nccl/nccl_reducer.h"
#include "comm/nccl/nccl_sum.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gpu_driver.h"

namespace motley {
namespace {

std::unique_ptr<comm::GradientReducer> make_reducer(train::GpuGroup group, Backend& backend,
                                                    std::size_t elements, std::size_t bucket_bytes,
                                                    DType dtype) {
  return std::make_unique<comm::NcclReducer>(
      std::move(group.gpus), comm::NcclReducer::Mixed{group.any_cpu_ranks, std::move(group.hosts)},
      [&cuda = dynamic_cast<CudaBackend&>(backend)] { return cuda.outer_stream(); }, elements, bucket_bytes,
      dtype);
}

std::unique_ptr<comm::SmallSum> make_small_sum(train::GpuGroup group, Backend& backend,
                                               std::size_t most_values) {
  return std::make_unique<comm::NcclSum>(std::move(group.gpus), group.any_cpu_ranks, std::move(group.hosts),
                                         dynamic_cast<CudaBackend&>(backend).outer_stream(), most_values);
}

}  // namespace

const train::GpuSupport& cuda_support() {
  static const train::GpuSupport support{&cuda::gpu_driver(), make_reducer, make_small_sum,
                                         comm::nccl_version};
  return support;
}

}  // namespace motley
