#include "kernels/cuda/cuda.h"

#include <string>
#include <string_view>

#include "core/log.h"

namespace motley::cuda {

namespace {

std::string the_device_text = "a GPU";

}  // namespace

std::string device_text() {
  return the_device_text;
}

void remember_device(int device) {
  the_device_text = fmt::format("GPU {}", device);
  cudaDeviceProp properties;
  MOTLEY_CUDA(cudaGetDeviceProperties(&properties, device));
  the_device_text = fmt::format("GPU {} ({}, PCI {:02x})", device, properties.name, properties.pciBusID);
}

std::string error_text(cudaError_t error, const char* call) {
  const std::string_view text = call;
  return fmt::format("{} failed on {}: {} ({})", text.substr(0, text.find('(')), device_text(),
                     cudaGetErrorString(error), cudaGetErrorName(error));
}

void throw_cuda_error(cudaError_t error, const char* call) {
  const std::string sentence = error_text(error, call);
  cudaGetLastError();  // so that the next call does not find this error again
  if (error == cudaErrorMemoryAllocation) throw OutOfMemory(sentence);
  throw Error(ExitCode::device, sentence);
}

void given_back(cudaError_t error, const char* call) noexcept {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not find it
  log::warn("{}", error_text(error, call));
}

Stream::Stream(bool urgent) {
  int least = 0, greatest = 0;
  MOTLEY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  MOTLEY_CUDA(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, urgent ? greatest : least));
}

}  // namespace motley::cuda
