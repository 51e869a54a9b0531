#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/convolutions.h"
#include "kernels/cuda/matrix_products.h"

namespace motley {
namespace {

constexpr std::size_t staging_half_bytes = std::size_t{4} << 20;
constexpr std::size_t landing_bytes = std::size_t{1} << 20;
// cuDNN, NCCL and the code of kernels take memory later that allocate() does not see.
constexpr std::size_t least_reserve_bytes = std::size_t{1} << 30;
constexpr std::int64_t marks_kept = std::int64_t{1} << 16;  // two for each micro-batch of a step

}  // namespace

CudaBackend::CudaBackend(int device, const GpuOptions& options)
    : index_(device),
      deterministic_(options.deterministic),
      stream_([&] {
        MOTLEY_CUDA(cudaSetDevice(device));
        return cuda::Stream();
      }()),
      graphs_(std::make_unique<cuda::Graphs>(stream_, options.graphs)),
      staging_(2 * staging_half_bytes),
      landing_(landing_bytes) {
  cudaDeviceProp properties;
  MOTLEY_CUDA(cudaGetDeviceProperties(&properties, device));
  multiprocessors_ = properties.multiProcessorCount;
  cache_bytes_ = properties.l2CacheSize;
  capability_ = 10 * properties.major + properties.minor;
  device_.kind = "cuda";
  device_.name = properties.name;
  device_.bf16_native = properties.major >= 8;
  whole_memory_bytes_ = options.memory_limit_bytes > 0 ? options.memory_limit_bytes : properties.totalGlobalMem;
  products_ = std::make_unique<cuda::MatrixProducts>(*this);
  convolutions_ = std::make_unique<cuda::Convolutions>(*this);
  device_.memory_limit_bytes = options.memory_limit_bytes;
  if (device_.memory_limit_bytes == 0) {
    // After the libraries have taken theirs.
    std::size_t free = 0, total = 0;
    MOTLEY_CUDA(cudaMemGetInfo(&free, &total));
    device_.memory_limit_bytes = free - std::min(free / 8, std::max(least_reserve_bytes, total / 50));
  }
}

CudaBackend::~CudaBackend() {
  // What is still running reads the memory that goes now.
  cudaStreamSynchronize(stream_);
}

void* CudaBackend::allocate(std::size_t bytes) {
  graphs_->interrupt();
  const std::size_t limit = device_.memory_limit_bytes;
  if (bytes > limit || allocated_ > limit - bytes) {
    throw OutOfMemory(fmt::format(
        "out of memory on {}: {} bytes were asked for, {} are in use, and the limit is {} bytes",
        cuda::device_text(), bytes, allocated_, limit));
  }
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, std::max<std::size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(
        fmt::format("out of memory on {}: {} bytes were asked for, {} are in use, and the device has no more",
                    cuda::device_text(), bytes, allocated_));
  }
  cuda::check(error, "cudaMalloc");
  allocated_ += bytes;
  return pointer;
}

void CudaBackend::release(void* pointer, std::size_t bytes) noexcept {
  if (pointer == nullptr) return;
  graphs_->interrupt_quietly();
  MOTLEY_CUDA_GIVE_BACK(cudaFree(pointer));
  allocated_ -= bytes;
}

// Where to put the next `bytes`, at most half of the staging memory, before they are copied to the device.
std::byte* CudaBackend::stage(std::size_t bytes) {
  if (staging_used_ + bytes > staging_half_bytes) {
    MOTLEY_CUDA(cudaEventRecord(staged_[staging_half_], outer_stream()));
    staging_half_ = 1 - staging_half_;
    staging_used_ = 0;
    // What was copied from this half has left it. An event that was never recorded is complete.
    MOTLEY_CUDA(cudaEventSynchronize(staged_[staging_half_]));
  }
  std::byte* const place = static_cast<std::byte*>(staging_.data()) +
                           static_cast<std::size_t>(staging_half_) * staging_half_bytes + staging_used_;
  staging_used_ += (bytes + 63) / 64 * 64;
  return place;
}

void CudaBackend::copy_to_device(void* device, const void* host, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, staging_half_bytes);
    std::byte* const place = stage(piece);
    std::memcpy(place, static_cast<const std::byte*>(host) + done, piece);
    MOTLEY_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(device) + done, place, piece, cudaMemcpyHostToDevice,
                                outer_stream()));
    done += piece;
  }
}

void CudaBackend::copy_to_host(void* host, const void* device, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, landing_bytes);
    MOTLEY_CUDA(cudaMemcpyAsync(landing_.data(), static_cast<const std::byte*>(device) + done, piece,
                                cudaMemcpyDeviceToHost, outer_stream()));
    synchronize();
    std::memcpy(static_cast<std::byte*>(host) + done, landing_.data(), piece);
    done += piece;
  }
}

void CudaBackend::fill_zero(View x) {
  if (x.bytes() > 0) MOTLEY_CUDA(cudaMemsetAsync(x.data, 0, x.bytes(), stream()));
}

void CudaBackend::synchronize() {
  MOTLEY_CUDA(cudaStreamSynchronize(outer_stream()));
}

std::int64_t CudaBackend::mark() {
  if (marks_made_ < marks_kept) marks_.emplace_back(cudaEventDefault);
  MOTLEY_CUDA(cudaEventRecord(marks_[static_cast<std::size_t>(marks_made_ % marks_kept)], outer_stream()));
  return marks_made_++;
}

double CudaBackend::seconds_between(std::int64_t from, std::int64_t to) {
  // Marks that are too old have been used again: time since then is not known.
  MOTLEY_CHECK(from >= 0 && from <= to && to < marks_made_ && marks_made_ - from <= marks_kept);
  float milliseconds = 0;
  MOTLEY_CUDA(cudaEventElapsedTime(&milliseconds, marks_[static_cast<std::size_t>(from % marks_kept)],
                                   marks_[static_cast<std::size_t>(to % marks_kept)]));
  return 1e-3 * static_cast<double>(milliseconds);
}

void CudaBackend::release_scratch() {
  graphs_->forget();
  scratch_ = Buffer();
  products_->release_memory();
}

std::byte* CudaBackend::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_ = Buffer();  // first give the old memory back, so that the two never count together
    scratch_ = Buffer(*this, (bytes + 255) / 256 * 256);
  }
  return static_cast<std::byte*>(scratch_.data());
}

}  // namespace motley
