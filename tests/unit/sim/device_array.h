// Memory of the simulated device for tests, and their way to it, by the calls of the CUDA runtime.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "device.h"
#include "kernels/cuda/cuda.h"
#include "simt.h"

namespace motley::test {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    MOTLEY_CUDA(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    const cuda::Stream stream;
    MOTLEY_CUDA(cudaMemcpyAsync(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice, stream));
    MOTLEY_CUDA(cudaStreamSynchronize(stream));
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::size_t bytes() const { return size_ * sizeof(T); }
  // As they are when all that is on `stream` is done.
  std::vector<T> values(cudaStream_t stream) const {
    std::vector<T> result(size_);
    MOTLEY_CUDA(cudaMemcpyAsync(result.data(), data_, bytes(), cudaMemcpyDeviceToHost, stream));
    MOTLEY_CUDA(cudaStreamSynchronize(stream));
    return result;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// The statement throws sim::Violation whose sentence holds all of `parts`.
template <class Statement>
void expect_violation(const Statement& statement, const std::vector<std::string>& parts) {
  try {
    statement();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const sim::Violation& violation) {
    for (const std::string& part : parts)
      EXPECT_NE(std::string(violation.what()).find(part), std::string::npos) << violation.what();
  }
}

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool address_sanitizer = true;
#else
inline constexpr bool address_sanitizer = false;
#endif

}  // namespace motley::test
