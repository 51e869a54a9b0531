// The simulated device: what the stand-ins of the CUDA libraries share. There are as many devices as
// MOTLEY_SIM_GPUS says (default 1), each with memory of its own.
//
//  * Memory of a device is out of the host's reach: it is mapped without access except while the device runs.
//    Behind each allocation lie bytes that nobody may write, looked at after each kernel and at cudaFree;
//    under AddressSanitizer they can't be read either.
//  * Streams are late on purpose. What is put on a stream runs when somebody waits for it, or, if the order
//    says so, earlier: MOTLEY_SIM_ORDER = 0 runs everything at once, 1 as late as it can, and any other number
//    draws both this and the order of threads from it. What misses a dependency between streams, or changes
//    pinned host memory under a copy, therefore gives wrong results.
//  * Each call of a library can fail: MOTLEY_SIM_FAULT = RANK:CALL:N:CODE makes the N-th CALL of that rank (of
//    OMPI_COMM_WORLD_RANK, 0 without MPI) return CODE. A CUDA error that loses the device stays, as in CUDA; one of
//    stream capture makes the captures of the device fail.
//    MOTLEY_SIM_CALLS = FILE makes a process that ends by itself write how often it made each call to FILE.RANK.
//
// All calls may come from any thread; one lock serves them all.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <string>

namespace motley::sim {

// Of every stand-in's state. Held by each entry point for as long as it runs.
std::recursive_mutex& lock();

// An entry point: holds the lock, counts the call, and knows whether it is to fail.
class Call {
 public:
  explicit Call(const char* name);
  // The code that MOTLEY_SIM_FAULT asks for here.
  std::optional<int> fault() const { return fault_; }

 private:
  std::lock_guard<std::recursive_mutex> guard_;
  std::optional<int> fault_;
};

// While one lives, device memory can be read and written by this process.
class Access {
 public:
  Access();
  ~Access();
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;
};

// Throws Violation unless [pointer, pointer + bytes) lies inside one allocation of the current device and
// pointer is a multiple of `alignment`; the sentence says which argument of which call it is. Zero bytes may
// have any pointer.
void check_device(const char* call, const char* argument, const void* pointer, std::size_t bytes,
                  std::size_t alignment = 1);
bool is_device_memory(const void* pointer);
bool is_pinned(const void* pointer, std::size_t bytes);

// What the node of a graph is that a piece of work becomes where its stream is captured (graphs.h).
enum class NodeKind : std::uint8_t { kernel, set, copy_in, copy_out, copy_inside };

// Puts work on a stream. It is called when the stream comes to it, with access to device memory, again and
// again until it returns true: false says that it waits for something outside. An error where the stream is captured
// and that has failed: nothing was put anywhere then.
[[nodiscard]] cudaError_t enqueue(cudaStream_t stream, std::string name, std::function<bool()> work,
                                  NodeKind kind = NodeKind::kernel);
// Runs all that is on the stream, and what that waits for.
void drain(cudaStream_t stream);

// The random numbers that decide orders. `seed` as in MOTLEY_SIM_ORDER; forgets what was drawn before. Tests
// that run both orders in one process call it between devices.
void set_order(std::uint64_t seed);
std::uint64_t draw();

// `text` as in MOTLEY_SIM_FAULT; empty: no call fails. Calls are counted anew, and no device is lost any more.
void set_fault(const std::string& text);

// The device of the calling thread.
int current_device();

// Everything that a kernel or a stand-in of a library has not freed: allocations, streams, events, graphs. For tests
// that look for leaks.
std::size_t live_objects();

}  // namespace motley::sim
