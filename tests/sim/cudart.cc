// The calls of the CUDA runtime that the program makes, as the CUDA Runtime API manual describes them.
#include "cudart.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "graphs.h"
#include "simt.h"

namespace sim = motley::sim;

namespace {

using sim::entry;

bool reaches_device(cudaMemcpyKind kind) {
  return kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
}

bool leaves_device(cudaMemcpyKind kind) {
  return kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
}

cudaError_t copy(const char* name, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice)
    throw sim::Violation(std::string(name) + ": only copies with a direction are simulated");
  if (reaches_device(kind)) {
    sim::check_device(name, "dst", to, bytes);
  } else if (sim::is_device_memory(to)) {
    throw sim::Violation(std::string(name) + ": dst is device memory, but the kind says host");
  }
  if (leaves_device(kind)) {
    sim::check_device(name, "src", from, bytes);
  } else if (sim::is_device_memory(from)) {
    throw sim::Violation(std::string(name) + ": src is device memory, but the kind says host");
  }
  const bool pinned =
      kind == cudaMemcpyDeviceToDevice || sim::is_pinned(kind == cudaMemcpyHostToDevice ? from : to, bytes);
  // The host takes part in such a copy, now or when it is done.
  if (!pinned && sim::is_captured(stream)) return sim::refuse_while_captured(stream);
  if (kind == cudaMemcpyHostToDevice && !pinned) {
    // From pageable memory: staged before the call returns.
    const auto staged = std::make_shared<std::vector<std::byte>>(
        static_cast<const std::byte*>(from), static_cast<const std::byte*>(from) + bytes);
    return sim::enqueue(
        stream, name,
        [staged, to] {
          sim::races::range(to, staged->size(), true);
          std::memcpy(to, staged->data(), staged->size());
          return true;
        },
        sim::NodeKind::copy_in);
  }
  const cudaError_t error = sim::enqueue(
      stream, name,
      [to, from, bytes] {
        sim::races::range(from, bytes, false);
        sim::races::range(to, bytes, true);
        std::memcpy(to, from, bytes);
        return true;
      },
      kind == cudaMemcpyHostToDevice   ? sim::NodeKind::copy_in
      : kind == cudaMemcpyDeviceToHost ? sim::NodeKind::copy_out
                                       : sim::NodeKind::copy_inside);
  // To pageable memory: the call returns when it is done.
  if (!pinned) sim::drain(stream);
  return error;
}

cudaError_t create_stream(const char* name, cudaStream_t* stream, unsigned flags) {
  return entry(name, [&] {
    if (flags != cudaStreamNonBlocking)
      throw sim::Violation(std::string(name) + ": only non-blocking streams are simulated");
    *stream = reinterpret_cast<cudaStream_t>(sim::create_stream());
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return entry("cudaGetDeviceCount", [&] {
    *count = sim::device_count();
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return entry("cudaDriverGetVersion", [&] {
    const char* const text = std::getenv("MOTLEY_SIM_DRIVER");
    *version = text == nullptr ? CUDART_VERSION : std::atoi(text);
    return cudaSuccess;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  return entry("cudaRuntimeGetVersion", [&] {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return entry("cudaSetDevice", [&] {
    if (device < 0 || device >= sim::device_count()) return cudaErrorInvalidDevice;
    sim::set_current_device(device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return entry("cudaGetDevice", [&] {
    *device = sim::current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return entry("cudaDeviceGetAttribute", [&] {
    if (device < 0 || device >= sim::device_count()) return cudaErrorInvalidDevice;
    const char* const capability = std::getenv("MOTLEY_SIM_CAPABILITY");  // "90"
    const int level = capability == nullptr ? 90 : std::atoi(capability);
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = 3;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = level / 10;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = level % 10;
        return cudaSuccess;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        return cudaSuccess;
      case cudaDevAttrPciBusId:
        *value = 16 + device;
        return cudaSuccess;
      case cudaDevAttrPciDeviceId:
      case cudaDevAttrPciDomainId:
        *value = 0;
        return cudaSuccess;
      default:
        throw sim::Violation("cudaDeviceGetAttribute: attribute " + std::to_string(attribute) +
                             " is not simulated");
    }
  });
}

// The header gives the name of either version to whoever includes it.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return entry("cudaGetDeviceProperties", [&] {
    if (device < 0 || device >= sim::device_count()) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Simulated GPU");
    properties->uuid.bytes[0] = static_cast<char>(sim::card_of(device));
    properties->totalGlobalMem = sim::device_memory_bytes();
    const char* const capability = std::getenv("MOTLEY_SIM_CAPABILITY");
    const int level = capability == nullptr ? 90 : std::atoi(capability);
    properties->major = level / 10;
    properties->minor = level % 10;
    properties->multiProcessorCount = 3;
    properties->l2CacheSize = 50 << 20;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->sharedMemPerBlock = 48 << 10;
    properties->pciBusID = 16 + device;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  return entry("cudaFuncGetAttributes", [&] {
    *attributes = {};
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return entry("cudaMemGetInfo", [&] {
    *total = sim::device_memory_bytes();
    *free = *total - sim::bytes_in_use();
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return entry("cudaMalloc", [&] {
    if (sim::unsafe_while_captured()) return cudaErrorStreamCaptureUnsupported;
    *pointer = nullptr;
    if (bytes == 0) return cudaSuccess;
    *pointer = sim::allocate(bytes);
    return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

cudaError_t cudaFree(void* pointer) {
  return entry("cudaFree", [&] {
    if (sim::unsafe_while_captured()) return cudaErrorStreamCaptureUnsupported;
    if (pointer == nullptr) return cudaSuccess;
    // It waits until the device is idle.
    sim::synchronize_device();
    return sim::release(pointer) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return entry("cudaMallocHost", [&] {
    if (sim::unsafe_while_captured()) return cudaErrorStreamCaptureUnsupported;
    *pointer = std::aligned_alloc(4096, (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096);
    if (*pointer == nullptr) return cudaErrorMemoryAllocation;
    sim::add_pinned(*pointer, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* pointer) {
  return entry("cudaFreeHost", [&] {
    if (sim::unsafe_while_captured()) return cudaErrorStreamCaptureUnsupported;
    if (pointer == nullptr) return cudaSuccess;
    sim::synchronize_device();
    if (!sim::remove_pinned(pointer)) return cudaErrorInvalidValue;
    std::free(pointer);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return entry("cudaMemcpyAsync", [&] { return copy("cudaMemcpyAsync", to, from, bytes, kind, stream); });
}

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  return entry("cudaMemsetAsync", [&] {
    sim::check_device("cudaMemsetAsync", "devPtr", pointer, bytes);
    return sim::enqueue(
        stream, "cudaMemsetAsync",
        [=] {
          sim::races::range(pointer, bytes, true);
          std::memset(pointer, value, bytes);
          return true;
        },
        sim::NodeKind::set);
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return create_stream("cudaStreamCreateWithFlags", stream, flags);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return create_stream("cudaStreamCreateWithPriority", stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return entry("cudaDeviceGetStreamPriorityRange", [&] {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return entry("cudaStreamDestroy", [&] {
    if (sim::is_captured(stream)) throw sim::Violation("cudaStreamDestroy: the stream is being captured");
    sim::destroy_stream(&sim::stream_of(stream));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return entry("cudaStreamSynchronize", [&] {
    if (sim::is_captured(stream)) return sim::refuse_while_captured(stream);
    sim::drain(stream);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return entry("cudaDeviceSynchronize", [&] {
    if (sim::invalidate_captures()) return cudaErrorStreamCaptureUnsupported;
    sim::synchronize_device();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return entry("cudaStreamQuery", [&] {
    if (sim::is_captured(stream)) return sim::refuse_while_captured(stream);
    sim::progress();
    const sim::Stream& s = sim::stream_of(stream);
    if (!s.work.empty()) return cudaErrorNotReady;
    sim::races::join(sim::races::host(), s.seen);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return entry("cudaEventCreateWithFlags", [&] {
    *event = sim::create_event((flags & cudaEventDisableTiming) == 0);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return entry("cudaEventDestroy", [&] {
    sim::event_of(event);
    sim::destroy_event(event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return entry("cudaEventRecord", [&] {
    CUevent_st& e = sim::event_of(event);
    sim::Stream& s = sim::stream_of(stream);
    if (s.capture) return sim::capture_record(s, e);
    e.capture = nullptr;
    const std::uint64_t ticket = ++e.recorded;
    return sim::put(s, {"cudaEventRecord", [&e, &s, ticket] {
                          e.completed = std::max(e.completed, ticket);
                          if (e.completed == ticket) e.seconds = s.clock;
                          e.seen = s.seen;
                          return true;
                        }});
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return entry("cudaStreamWaitEvent", [&] {
    CUevent_st& e = sim::event_of(event);
    const std::uint64_t ticket = e.recorded;
    sim::Stream& s = sim::stream_of(stream);
    if (s.capture || e.capture) return sim::capture_wait(s, e);
    return sim::put(s, {"cudaStreamWaitEvent", [&e, &s, ticket] {
                          if (e.completed < ticket) return false;
                          s.clock = std::max(s.clock, e.seconds);
                          sim::races::join(s.seen, e.seen);
                          return true;
                        }});
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return entry("cudaEventQuery", [&] {
    const CUevent_st& e = sim::event_of(event);
    if (e.capture) return sim::refuse_captured_event(e);
    if (e.completed < e.recorded) sim::progress();
    if (e.completed < e.recorded) return cudaErrorNotReady;
    sim::races::join(sim::races::host(), e.seen);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return entry("cudaEventSynchronize", [&] {
    const CUevent_st& e = sim::event_of(event);
    if (e.capture) return sim::refuse_captured_event(e);
    const std::uint64_t ticket = e.recorded;
    sim::run_until([&] { return e.completed >= ticket; }, {});
    sim::races::join(sim::races::host(), e.seen);
    return cudaSuccess;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return entry("cudaEventElapsedTime", [&] {
    const CUevent_st &a = sim::event_of(start), &b = sim::event_of(end);
    for (const CUevent_st* event : {&a, &b})
      if (event->capture) return sim::refuse_captured_event(*event);
    if (!a.timed || !b.timed || a.recorded == 0 || b.recorded == 0) return cudaErrorInvalidResourceHandle;
    if (a.completed < a.recorded || b.completed < b.recorded) return cudaErrorNotReady;
    *milliseconds = static_cast<float>(1e3 * (b.seconds - a.seconds));
    return cudaSuccess;
  });
}

cudaError_t cudaGetLastError() {
  const sim::Call call("cudaGetLastError");
  const cudaError_t error = sim::last_error();
  sim::last_error() = sim::lost_device();
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge:
      return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched:
      return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorStreamCaptureImplicit:
      return "cudaErrorStreamCaptureImplicit";
    case cudaErrorCapturedEvent:
      return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread:
      return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorGraphExecUpdateFailure:
      return "cudaErrorGraphExecUpdateFailure";
    default:
      return "an error that the simulated device has no name for";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  text = "simulated error " + std::to_string(static_cast<int>(error));
  return text.c_str();
}

}  // extern "C"
