// A kernel that does nothing, to ask CUDA whether this program has code for a device.
#include "kernels/cuda/device_code.h"

#include "kernels/cuda/device.cuh"

namespace motley::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

// ----------------------------------------------------------------------------------------------------------

void require_device_code(int device) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(nothing));
  if (error == cudaSuccess) return;
  cudaGetLastError();
  // The last two: there is PTX that the driver is too old to compile, or may not.
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidDeviceFunction &&
      error != cudaErrorUnsupportedPtxVersion && error != cudaErrorJitCompilerNotFound)
    check(error, "cudaFuncGetAttributes");
  cudaDeviceProp properties;
  MOTLEY_CUDA(cudaGetDeviceProperties(&properties, device));
  const std::string advice =
      properties.major >= 6 ? fmt::format("build Motley with -DMOTLEY_CUDA_ARCHITECTURES={}{}", properties.major,
                                          properties.minor)
                            : "Motley needs sm_60 or newer; use --device cpu";
  fail(ExitCode::device, "GPU {} ({}) has the architecture sm_{}{}, but this program was built for {}: {}", device,
       properties.name, properties.major, properties.minor, MOTLEY_CUDA_ARCHITECTURES_TEXT, advice);
}

}  // namespace motley::cuda
