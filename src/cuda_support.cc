#include "cuda_support.h"

#include <utility>

#include "comm/nccl/nccl_reducer.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/gpu_driver.h"
#include "train/gpus.h"

namespace motley {

void use_cuda() {
  train::GpuSupport support;
  support.driver = &cuda::gpu_driver();
  support.make_reducer = [](train::GpuGroup group, Backend& backend, std::size_t elements,
                            std::size_t bucket_bytes, DType dtype) {
    return std::make_unique<comm::NcclReducer>(
        std::move(group.gpus), comm::NcclReducer::Mixed{group.any_cpu_ranks, std::move(group.hosts)},
        dynamic_cast<CudaBackend&>(backend).stream(), elements, bucket_bytes, dtype);
  };
  support.nccl_version = comm::nccl_version;
  train::set_gpu_support(support);
}

}  // namespace motley
