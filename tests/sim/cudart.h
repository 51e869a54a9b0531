// Between device.cc, which runs the simulated devices, and cudart.cc, the calls of the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "device.h"
#include "races.h"

namespace motley::sim {
struct Capture;  // graphs.h
}

// What cudaEvent_t points to: the runtime's own type, which nobody but the runtime defines.
struct CUevent_st {
  bool timed = true;
  std::uint64_t recorded = 0;   // calls of cudaEventRecord
  std::uint64_t completed = 0;  // the newest of them that a stream has come to
  double seconds = 0;           // when
  motley::sim::races::Clocks seen;  // of what comes before it
  // Where the last record was in a stream that is captured: of which capture, and the nodes that come before it.
  std::shared_ptr<motley::sim::Capture> capture;
  std::set<std::size_t> nodes;
};

namespace motley::sim {

// What a piece of work has seen, and the place in there that counts it.
struct Timeline {
  races::Clocks* seen;
  std::size_t index;
};

struct Work {
  std::string name;
  std::function<bool()> run;
  bool touches_memory = false;  // of the device: such work runs with access to it, and guards are looked at after it
  bool waits_outside = false;   // may wait for other processes; takes what access it needs itself
  double put_at = 0;           // when
  races::Clocks host{};        // what the host had waited for then
  NodeKind kind = NodeKind::kernel;
  std::function<Timeline()> timeline = {};  // without one, the stream's
};

struct Stream {
  int device = 0;
  std::uint64_t number = 0;
  std::size_t index = 0;  // for races
  std::deque<Work> work;
  // When the device has come to the end of what was run, as if nothing ran later than it could: work begins
  // when it was put on the stream or when the work before it ended. What events record.
  double clock = 0;
  // A call of NCCL that is to put work here and has not done so yet: nobody else may use the stream.
  const char* awaits = nullptr;
  races::Clocks seen;  // of what has run on it
  std::shared_ptr<Capture> capture;  // that what is put here becomes part of
};

int device_count();
// Which card of the host a device is: CUDA_VISIBLE_DEVICES may hide some.
int card_of(int device);
std::size_t device_memory_bytes();
std::size_t bytes_in_use();
void set_current_device(int device);
cudaError_t& lost_device();
cudaError_t& last_error();
// What a call gives that is to fail with this code: errors of one call, after which a program can go on, errors that
// make the captures of this device fail, and all others, which mean that the context is gone.
cudaError_t fail_call(int code);

void* allocate(std::size_t bytes);  // null: no more
bool release(void* pointer);
void add_pinned(const void* pointer, std::size_t bytes);
bool remove_pinned(const void* pointer);

Stream& stream_of(cudaStream_t handle);
// A place in clocks that no stream has.
std::size_t new_timeline();
Stream* create_stream();
void destroy_stream(Stream* stream);
// What belongs on the stream next. An error where the stream is captured and that has failed.
cudaError_t put(Stream& stream, Work work);
void run_until(const std::function<bool()>& reached, const std::function<bool()>& first);
void progress();
// Calls `work` without the lock, which the caller holds once.
void unlocked(const std::function<void()>& work);
void synchronize_device();

cudaEvent_t create_event(bool timed);
void destroy_event(cudaEvent_t event);
CUevent_st& event_of(cudaEvent_t event);

// Runs `work` unless the device is lost or the call is to fail. What is remembered is what cudaGetLastError gives.
template <class F>
cudaError_t entry(const char* name, F work) {
  const Call call(name);
  const auto run = [&]() -> cudaError_t {
    if (lost_device() != cudaSuccess) return lost_device();
    return call.fault() ? fail_call(*call.fault()) : work();
  };
  const cudaError_t error = run();
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error() = error;
  return error;
}

}  // namespace motley::sim
