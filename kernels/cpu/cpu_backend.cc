#include "kernels/cpu/cpu_backend.h"

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"

namespace motley {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::int64_t memory_block = 1 << 20;  // bytes per block of a parallel fill

std::size_t round_up(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::string processor_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

}  // namespace

CpuBackend::CpuBackend(int threads, std::size_t memory_limit_bytes) {
  MOTLEY_CHECK(threads >= 1);
  device_.kind = "cpu";
  device_.name = processor_name();
  device_.bf16_native = onednn::has_bf16_products();
  device_.threads = threads;
  device_.memory_limit_bytes = memory_limit_bytes > 0 ? memory_limit_bytes : machine_memory_bytes();
}

void* CpuBackend::allocate(std::size_t bytes) {
  const std::size_t in_use = allocated_.fetch_add(bytes);
  const std::size_t limit = device_.memory_limit_bytes;
  const bool allowed = bytes <= limit && in_use <= limit - bytes;
  const bool possible = bytes <= std::numeric_limits<std::size_t>::max() - alignment;
  void* const pointer = allowed && possible ? std::aligned_alloc(alignment, round_up(bytes)) : nullptr;
  if (pointer != nullptr) return pointer;
  allocated_.fetch_sub(bytes);
  throw OutOfMemory(
      fmt::format("out of memory on the CPU: {} bytes were asked for, {} are in use, and {}", bytes, in_use,
                  allowed ? "the system has no more" : fmt::format("the limit is {} bytes", limit)));
}

void CpuBackend::release(void* pointer, std::size_t bytes) noexcept {
  if (pointer == nullptr) return;
  std::free(pointer);
  allocated_.fetch_sub(bytes);
}

void CpuBackend::copy_to_device(void* device, const void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuBackend::copy_to_host(void* host, const void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void CpuBackend::fill_zero(View x) {
  auto* bytes = static_cast<std::byte*>(x.data);
  parallel_blocks(threads(), static_cast<std::int64_t>(x.bytes()), memory_block,
                  [&](std::int64_t begin, std::int64_t end) {
                    std::memset(bytes + begin, 0, static_cast<std::size_t>(end - begin));
                  });
}

std::int64_t CpuBackend::mark() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

double CpuBackend::seconds_between(std::int64_t from, std::int64_t to) {
  return 1e-9 * static_cast<double>(to - from);
}

std::byte* CpuBackend::scratch(std::size_t bytes) {
  if (bytes > scratch_.bytes()) {
    scratch_ = Buffer();  // first give the old memory back, so that the two never count together
    scratch_ = Buffer(*this, round_up(bytes));
  }
  return static_cast<std::byte*>(scratch_.data());
}

std::unique_ptr<Backend> make_cpu_backend(int threads, std::size_t memory_limit_bytes) {
  return std::make_unique<CpuBackend>(threads, memory_limit_bytes);
}

}  // namespace motley
