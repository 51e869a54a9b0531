#include "kernels/cuda/gpu_driver.h"

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_code.h"

namespace motley::cuda {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// A card's UUID, or that of its part (MIG), in 52 bits: FNV-1a.
std::uint64_t id_of(const cudaUUID_t& uuid) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : uuid.bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash & ((std::uint64_t{1} << 52) - 1);
}

int device_count() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorNoDevice) {
    cudaGetLastError();
    return 0;
  }
  if (error == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    // Without any driver there are no GPUs that could be used: an ordinary CPU node.
    if (driver == 0) return 0;
    // The oldest toolkit that Motley is built with.
    constexpr int oldest = 12000;
    fail(ExitCode::device,
         "the NVIDIA driver supports CUDA {}, but this program needs CUDA {}: install a newer driver, {}or use "
         "--device cpu",
         version_text(driver), version_text(runtime),
         driver >= oldest ? fmt::format("build Motley with CUDA {}, ", version_text(driver)) : "");
  }
  check(error, "cudaGetDeviceCount");
  return devices;
}

class CudaDriver final : public GpuDriver {
 public:
  std::vector<GpuInfo> devices() const override {
    std::vector<GpuInfo> all(static_cast<std::size_t>(device_count()));
    for (std::size_t i = 0; i < all.size(); ++i) {
      cudaDeviceProp properties;
      MOTLEY_CUDA(cudaGetDeviceProperties(&properties, static_cast<int>(i)));
      all[i] = {id_of(properties.uuid), properties.name};
    }
    return all;
  }

  std::unique_ptr<Backend> open(int device, const GpuOptions& options) const override {
    remember_device(device);
    MOTLEY_CUDA(cudaSetDevice(device));
    require_device_code(device);
    return std::make_unique<CudaBackend>(device, options);
  }
};

}  // namespace

const GpuDriver& gpu_driver() {
  static const CudaDriver driver;
  return driver;
}

}  // namespace motley::cuda
