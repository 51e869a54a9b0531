#include "cuda_support.h"

#include <utility>

#include "comm/nccl/nccl_reducer.h"
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

}  // namespace

const train::GpuSupport& cuda_support() {
  static const train::GpuSupport support{&cuda::gpu_driver(), make_reducer, comm::nccl_version};
  return support;
}

}  // namespace motley
