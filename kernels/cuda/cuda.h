// Calls of the CUDA runtime, checked, and its objects, owned. A call that fails is Error(device), or
// OutOfMemory, with a sentence that names the call, the device and what CUDA says of it.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "core/error.h"

namespace motley::cuda {

// The sentence of an error: the call up to its arguments, the device, what CUDA says.
std::string error_text(cudaError_t error, const char* call);
[[noreturn]] void throw_cuda_error(cudaError_t error, const char* call);

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw_cuda_error(error, call);
}

// Of calls that give something back, whose errors nobody waits for: a warning with the sentence. A device that is lost
// says so in the next call as well.
void given_back(cudaError_t error, const char* call) noexcept;
#define MOTLEY_CUDA_GIVE_BACK(call) ::motley::cuda::given_back((call), #call)

// "GPU 1 (NVIDIA H100, PCI 3b)" for the device that this process opened last.
std::string device_text();
// Asks CUDA for it, at a time when it still answers.
void remember_device(int device);

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags");
  }
  ~Event() {
    if (event_ != nullptr) MOTLEY_CUDA_GIVE_BACK(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  operator cudaEvent_t() const { return event_; }  // NOLINT: an Event is used as CUDA's

 private:
  cudaEvent_t event_ = nullptr;
};

class Stream {
 public:
  // `urgent`: of the highest priority that the device has.
  explicit Stream(bool urgent = false);
  ~Stream() {
    if (stream_ != nullptr) MOTLEY_CUDA_GIVE_BACK(cudaStreamDestroy(stream_));
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  operator cudaStream_t() const { return stream_; }  // NOLINT

 private:
  cudaStream_t stream_ = nullptr;
};

// Page-locked host memory, which the device reads and writes by itself.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMallocHost(&data_, bytes), "cudaMallocHost");
  }
  ~PinnedBuffer() {
    if (data_ != nullptr) MOTLEY_CUDA_GIVE_BACK(cudaFreeHost(data_));
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace motley::cuda

// The call's own text up to its arguments is its name in the sentence.
#define MOTLEY_CUDA(call) ::motley::cuda::check((call), #call)
