#include "device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cudart.h"
#include "graphs.h"
#include "races.h"
#include "simt.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace motley::sim {
namespace {

constexpr std::size_t granularity = 256;       // of allocations, as cudaMalloc aligns them
constexpr std::size_t guard_bytes = 768;       // behind each, at least
constexpr std::size_t region_bytes = std::size_t{1} << 40;
constexpr std::uint8_t guard_value = 0xA5, fresh_value = 0xFF;

std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct Fault {
  std::string call;
  std::uint64_t at = 0;
  int code = 0;
};

std::optional<Fault> parse_fault(const char* text) {
  if (text == nullptr || *text == 0) return {};
  std::string rank, call, at, code;
  std::string* const fields[] = {&rank, &call, &at, &code};
  std::size_t field = 0;
  for (const char* c = text; *c != 0; ++c) {
    if (*c == ':' && field < 3) {
      ++field;
    } else {
      *fields[field] += *c;
    }
  }
  if (field != 3) throw Violation("MOTLEY_SIM_FAULT is not RANK:CALL:N:CODE");
  if (std::stoull(rank) != number_from_environment("OMPI_COMM_WORLD_RANK", 0)) return {};
  return Fault{call, std::stoull(at), std::stoi(code)};
}

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
};

// All of the simulated machine.
struct Machine {
  std::recursive_mutex mutex;

  // Memory: one region of addresses, used from the start.
  std::byte* region = nullptr;
  std::size_t region_used = 0;
  std::map<std::byte*, Allocation> allocations;
  std::map<std::byte*, std::size_t> holes;  // freed, neighbours joined: a small region is quick to protect
  std::map<int, std::size_t> bytes_in_use;
  int access = 0;
  std::optional<Access>* kept_access = nullptr;
  std::map<const std::byte*, std::size_t> pinned;

  std::set<Stream*> streams;
  std::size_t streams_made = 0;
  std::map<int, std::unique_ptr<Stream>> default_streams;
  std::set<cudaEvent_t> events;
  bool running = false;

  std::uint64_t order = number_from_environment("MOTLEY_SIM_ORDER", 1);
  std::mt19937_64 random{order};

  std::optional<Fault> fault = parse_fault(std::getenv("MOTLEY_SIM_FAULT"));
  std::map<std::string, std::uint64_t> calls;
  bool counts_calls = std::getenv("MOTLEY_SIM_CALLS") != nullptr;
  cudaError_t lost = cudaSuccess;
  cudaError_t last = cudaSuccess;
};

// At the end of a process that MOTLEY_SIM_CALLS asks for its calls.
void write_calls();

Machine& machine() {
  static Machine* const one = [] {
    auto* const made = new Machine;  // outlives what static destructors free
    if (made->counts_calls) std::atexit(write_calls);
    return made;
  }();
  return *one;
}

void write_calls() {
  const std::string path = std::string(std::getenv("MOTLEY_SIM_CALLS")) + "." +
                           std::to_string(number_from_environment("OMPI_COMM_WORLD_RANK", 0));
  std::ofstream file(path);
  for (const auto& [call, count] : machine().calls) file << call << ' ' << count << '\n';
}

thread_local int device_of_thread = 0;

std::size_t whole(std::size_t bytes) {
  return (bytes + granularity - 1) / granularity * granularity + guard_bytes;
}

void protect(int protection) {
  Machine& m = machine();
  if (m.region_used > 0) ::mprotect(m.region, m.region_used, protection);
}

void check_guard(std::byte* pointer, const Allocation& allocation, const std::string& when) {
  static const std::vector<std::uint8_t> pattern(granularity + guard_bytes, guard_value);
  std::byte* const guard = pointer + allocation.bytes;
  const std::size_t size = whole(allocation.bytes) - allocation.bytes;
  ASAN_UNPOISON_MEMORY_REGION(guard, size);
  if (std::memcmp(guard, pattern.data(), size) != 0) {
    const auto* const written =
        std::find_if(guard, guard + size, [](std::byte b) { return b != std::byte{guard_value}; });
    const auto behind = written - guard;
    std::memset(guard, guard_value, size);
    throw Violation("device memory was written " + std::to_string(behind) +
                    " bytes behind the end of an allocation of " + std::to_string(allocation.bytes) +
                    " bytes, seen after " + when);
  }
  ASAN_POISON_MEMORY_REGION(guard, size);
}

void check_guards(const std::string& when) {
  for (const auto& [pointer, allocation] : machine().allocations) check_guard(pointer, allocation, when);
}

std::map<std::byte*, Allocation>::iterator allocation_of(const void* pointer) {
  Machine& m = machine();
  auto* const at = static_cast<std::byte*>(const_cast<void*>(pointer));
  auto found = m.allocations.upper_bound(at);
  if (found == m.allocations.begin()) return m.allocations.end();
  --found;
  return at < found->first + std::max<std::size_t>(found->second.bytes, 1) ? found : m.allocations.end();
}

std::map<std::byte*, std::size_t>::iterator add_hole(std::byte* pointer, std::size_t size) {
  auto& holes = machine().holes;
  auto hole = holes.emplace(pointer, size).first;
  if (const auto next = std::next(hole); next != holes.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes.erase(next);
  }
  if (hole == holes.begin()) return hole;
  const auto before = std::prev(hole);
  if (before->first + before->second != hole->first) return hole;
  before->second += hole->second;
  holes.erase(hole);
  return before;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// While one lives, memory that was opened for a piece of work stays open for the next ones.
class KeptAccess {
 public:
  KeptAccess() : outer_(machine().kept_access) { machine().kept_access = &access_; }
  ~KeptAccess() { machine().kept_access = outer_; }
  KeptAccess(const KeptAccess&) = delete;
  KeptAccess& operator=(const KeptAccess&) = delete;

 private:
  std::optional<Access>* outer_;
  std::optional<Access> access_;
};

// Runs the first piece of work of a stream. False: there is none, or it waits.
bool step(Stream& stream) {
  Machine& m = machine();
  if (stream.work.empty() || m.running) return false;
  m.running = true;
  // Off the queue while it runs, so that what throws is not tried again.
  Work work = std::move(stream.work.front());
  stream.work.pop_front();
  bool done = false;
  const double begin = seconds();
  stream.clock = std::max(stream.clock, work.put_at);
  try {
    // Opening and closing the memory takes longer than most work: whoever runs several pieces keeps it open.
    std::optional<Access> own;
    if (work.touches_memory) {
      std::optional<Access>& access = m.kept_access == nullptr ? own : *m.kept_access;
      if (!access) access.emplace();
    }
    if (races::on()) {
      races::join(stream.seen, work.host);
      const auto [seen, index] = work.timeline ? work.timeline() : Timeline{&stream.seen, stream.index};
      if (seen->size() <= index) seen->resize(index + 1);
      ++(*seen)[index];
      races::begin_work(work.name, index, *seen);
    }
    done = work.run();
    races::end_work();
    if (done) stream.clock = work.waits_outside ? seconds() : stream.clock + (seconds() - begin);
    if (done && work.touches_memory) check_guards(work.name);
  } catch (...) {
    races::abandon_work();
    m.running = false;
    throw;
  }
  m.running = false;
  if (!done) stream.work.push_front(std::move(work));
  return done;
}

// One piece of work of any stream, in random order.
bool step_any() {
  Machine& m = machine();
  std::vector<Stream*> all(m.streams.begin(), m.streams.end());
  for (const auto& [device, stream] : m.default_streams) all.push_back(stream.get());
  std::sort(all.begin(), all.end(), [](const Stream* a, const Stream* b) { return a->number < b->number; });
  std::shuffle(all.begin(), all.end(), m.random);
  return std::any_of(all.begin(), all.end(), [](Stream* stream) { return step(*stream); });
}

bool outside_work_pending() {
  Machine& m = machine();
  const auto waits = [](const Stream& s) { return !s.work.empty() && s.work.front().waits_outside; };
  for (const Stream* s : m.streams)
    if (waits(*s)) return true;
  return std::any_of(m.default_streams.begin(), m.default_streams.end(),
                     [&](const auto& entry) { return waits(*entry.second); });
}

// After work was enqueued: some of it may run at once.
void run_early() {
  Machine& m = machine();
  if (m.running) return;
  if (m.order == 1) return;
  const KeptAccess kept;
  if (m.order == 0) {
    while (step_any()) {
    }
  } else if (m.order > 1) {
    for (auto pieces = m.random() % 4; pieces > 0 && step_any(); --pieces) {
    }
  }
}

}  // namespace

std::recursive_mutex& lock() {
  return machine().mutex;
}

Call::Call(const char* name) : guard_(machine().mutex) {
  Machine& m = machine();
  if (!m.counts_calls && (!m.fault || m.fault->call != name)) return;
  const std::uint64_t number = ++m.calls[name];
  if (m.fault && m.fault->call == name && number == m.fault->at) fault_ = m.fault->code;
}

Access::Access() {
  if (machine().access++ == 0) protect(PROT_READ | PROT_WRITE);
}

Access::~Access() {
  if (--machine().access == 0) protect(PROT_NONE);
}

void set_order(std::uint64_t seed) {
  const std::lock_guard guard(lock());
  machine().order = seed;
  machine().random.seed(seed);
}

void set_fault(const std::string& text) {
  const std::lock_guard guard(lock());
  Machine& m = machine();
  m.fault = parse_fault(text.c_str());
  m.calls.clear();
  m.lost = m.last = cudaSuccess;
}

std::uint64_t draw() {
  return machine().random();
}

int current_device() {
  return device_of_thread;
}

void set_current_device(int device) {
  device_of_thread = device;
}

namespace {

// The cards that CUDA_VISIBLE_DEVICES leaves, up to the first that does not exist.
std::vector<int> visible_cards() {
  const int cards = static_cast<int>(number_from_environment("MOTLEY_SIM_GPUS", 1));
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  std::vector<int> visible;
  if (text == nullptr) {
    for (int card = 0; card < cards; ++card) visible.push_back(card);
    return visible;
  }
  for (const char* at = text; *at != 0;) {
    char* end = nullptr;
    const long card = std::strtol(at, &end, 10);
    if (end == at || card < 0 || card >= cards) break;
    visible.push_back(static_cast<int>(card));
    at = *end == ',' ? end + 1 : end;
  }
  return visible;
}

}  // namespace

int device_count() {
  return static_cast<int>(visible_cards().size());
}

int card_of(int device) {
  return visible_cards().at(static_cast<std::size_t>(device));
}

std::size_t device_memory_bytes() {
  return number_from_environment("MOTLEY_SIM_MEMORY", std::size_t{4} << 30);
}

cudaError_t& lost_device() {
  return machine().lost;
}

cudaError_t& last_error() {
  return machine().last;
}

cudaError_t fail_call(int code) {
  const auto error = static_cast<cudaError_t>(code);
  if (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread) {
    invalidate_captures();
    return error;
  }
  const std::set<cudaError_t> of_one_call = {
      cudaErrorMemoryAllocation,   cudaErrorInvalidValue,          cudaErrorNoDevice,
      cudaErrorInsufficientDriver, cudaErrorInitializationError,   cudaErrorNoKernelImageForDevice,
      cudaErrorNotSupported,       cudaErrorGraphExecUpdateFailure};
  if (!of_one_call.contains(error)) machine().lost = error;
  return error;
}

std::size_t bytes_in_use() {
  return machine().bytes_in_use[current_device()];
}

void* allocate(std::size_t bytes) {
  Machine& m = machine();
  if (m.bytes_in_use[current_device()] + bytes > device_memory_bytes()) return nullptr;
  if (m.region == nullptr) {
    void* const region = ::mmap(nullptr, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) throw std::bad_alloc();
    m.region = static_cast<std::byte*>(region);
    races::set_memory(region);
  }
  const std::size_t size = whole(bytes);
  auto best = m.holes.end();
  for (auto hole = m.holes.begin(); hole != m.holes.end(); ++hole)
    if (hole->second >= size && (best == m.holes.end() || hole->second < best->second)) best = hole;
  if (best == m.holes.end()) {
    const std::size_t page = 4096, more = (size + page - 1) / page * page;
    if (m.region_used + more > region_bytes) return nullptr;
    best = add_hole(m.region + m.region_used, more);
    m.region_used += more;
  }
  const auto [pointer, hole_size] = *best;
  m.holes.erase(best);
  if (hole_size > size) add_hole(pointer + size, hole_size - size);
  m.allocations[pointer] = {bytes, current_device()};
  m.bytes_in_use[current_device()] += bytes;
  protect(m.access > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
  const Access access;
  races::forget(pointer, bytes);
  ASAN_UNPOISON_MEMORY_REGION(pointer, size);
  std::memset(pointer, fresh_value, bytes);  // device memory holds anything at first
  std::memset(pointer + bytes, guard_value, size - bytes);
  ASAN_POISON_MEMORY_REGION(pointer + bytes, size - bytes);
  return pointer;
}

bool release(void* pointer) {
  Machine& m = machine();
  const auto found = m.allocations.find(static_cast<std::byte*>(pointer));
  if (found == m.allocations.end()) return false;
  const Access access;
  check_guard(found->first, found->second, "cudaFree");
  ASAN_UNPOISON_MEMORY_REGION(found->first, whole(found->second.bytes));
  std::memset(found->first, fresh_value, found->second.bytes);
  m.bytes_in_use[found->second.device] -= found->second.bytes;
  add_hole(found->first, whole(found->second.bytes));
  ASAN_POISON_MEMORY_REGION(found->first, whole(found->second.bytes));
  m.allocations.erase(found);
  return true;
}

void add_pinned(const void* pointer, std::size_t bytes) {
  machine().pinned[static_cast<const std::byte*>(pointer)] = bytes;
}

bool remove_pinned(const void* pointer) {
  return machine().pinned.erase(static_cast<const std::byte*>(pointer)) > 0;
}

bool is_pinned(const void* pointer, std::size_t bytes) {
  const auto* const at = static_cast<const std::byte*>(pointer);
  const auto& pinned = machine().pinned;
  auto found = pinned.upper_bound(at);
  if (found == pinned.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}

bool is_device_memory(const void* pointer) {
  return allocation_of(pointer) != machine().allocations.end();
}

void check_device(const char* call, const char* argument, const void* pointer, std::size_t bytes,
                  std::size_t alignment) {
  if (bytes == 0) return;
  const std::string what = std::string(call) + ": " + argument;
  const auto found = allocation_of(pointer);
  if (found == machine().allocations.end()) throw Violation(what + " is not device memory");
  if (found->second.device != current_device()) {
    throw Violation(what + " belongs to device " + std::to_string(found->second.device) + ", not " +
                    std::to_string(current_device()));
  }
  const auto* const at = static_cast<const std::byte*>(pointer);
  if (at + bytes > found->first + found->second.bytes) {
    throw Violation(what + " needs " + std::to_string(bytes) + " bytes, but its allocation ends after " +
                    std::to_string(found->first + found->second.bytes - at));
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % alignment != 0)
    throw Violation(what + " is not a multiple of " + std::to_string(alignment));
}

Stream& stream_of(cudaStream_t handle) {
  Machine& m = machine();
  if (handle == nullptr || handle == cudaStreamLegacy) {
    auto& stream = m.default_streams[current_device()];
    if (!stream) {
      stream = std::make_unique<Stream>();
      stream->device = current_device();
      stream->number = 1000000 + static_cast<std::uint64_t>(current_device());
      stream->index = m.streams_made++;
    }
    return *stream;
  }
  auto* const stream = reinterpret_cast<Stream*>(handle);
  if (!m.streams.contains(stream)) throw Violation("a call was given a stream that does not exist");
  if (stream->device != current_device()) {
    throw Violation("a call was given a stream of device " + std::to_string(stream->device) +
                    " while device " + std::to_string(current_device()) + " is current");
  }
  if (stream->awaits != nullptr) {
    throw Violation(std::string("a call was given a stream that ") + stream->awaits +
                    " has yet to put work on: poll ncclCommGetAsyncError until it says ncclSuccess");
  }
  return *stream;
}

Stream* create_stream() {
  Machine& m = machine();
  auto* const stream = new Stream;
  stream->device = current_device();
  stream->index = m.streams_made++;
  stream->number = stream->index;
  m.streams.insert(stream);
  return stream;
}

void destroy_stream(Stream* stream) {
  while (step(*stream)) {
  }
  machine().streams.erase(stream);
  delete stream;
}

std::size_t new_timeline() {
  return machine().streams_made++;
}

cudaError_t put(Stream& stream, Work work) {
  if (stream.capture) return capture_work(stream, std::move(work));
  work.put_at = seconds();
  if (races::on()) work.host = races::host();
  stream.work.push_back(std::move(work));
  run_early();
  return cudaSuccess;
}

cudaError_t enqueue(cudaStream_t handle, std::string name, std::function<bool()> work, NodeKind kind) {
  return put(stream_of(handle),
             Work{.name = std::move(name), .run = std::move(work), .touches_memory = true, .kind = kind});
}

void unlocked(const std::function<void()>& work) {
  lock().unlock();
  work();
  lock().lock();
}

// Makes what lies before `reached` happen; gives the lock away while it can only wait for others.
void run_until(const std::function<bool()>& reached, const std::function<bool()>& first) {
  while (!reached()) {
    {
      const KeptAccess kept;
      while ((first && first()) || step_any()) {
        if (reached()) return;
      }
    }
    if (!outside_work_pending())
      throw Violation("streams wait for each other: nothing on the device can go on");
    unlocked([] { std::this_thread::yield(); });
  }
}

void drain(cudaStream_t handle) {
  Stream& stream = stream_of(handle);
  run_until([&] { return stream.work.empty(); }, [&] { return step(stream); });
  races::join(races::host(), stream.seen);
}

void synchronize_device() {
  const Machine& m = machine();
  run_until(
      [&] {
        const auto idle = [](const Stream& stream) {
          return stream.device != current_device() || stream.work.empty();
        };
        return std::all_of(m.streams.begin(), m.streams.end(), [&](const Stream* s) { return idle(*s); }) &&
               std::all_of(m.default_streams.begin(), m.default_streams.end(),
                           [&](const auto& entry) { return idle(*entry.second); });
      },
      {});
  const auto note = [](const Stream& stream) {
    if (stream.device == current_device()) races::join(races::host(), stream.seen);
  };
  for (const Stream* stream : m.streams) note(*stream);
  for (const auto& [device, stream] : m.default_streams) note(*stream);
}

void progress() {
  step_any();
}

cudaError_t launch(const Grid& grid, std::function<void()> body, cudaStream_t stream) {
  const Call call("cudaLaunchKernel");
  const auto error = [&]() -> cudaError_t {
    if (machine().lost != cudaSuccess) return machine().lost;
    if (call.fault()) return fail_call(*call.fault());
    const dim3 &b = grid.blocks, &t = grid.threads;
    if (b.x == 0 || b.y == 0 || b.z == 0 || t.x == 0 || t.y == 0 || t.z == 0)
      return cudaErrorInvalidConfiguration;
    if (b.x > 2147483647u || b.y > 65535 || b.z > 65535) return cudaErrorInvalidConfiguration;
    if (t.x > 1024 || t.y > 1024 || t.z > 64 || t.x * t.y * t.z > 1024) return cudaErrorInvalidConfiguration;
    if (grid.shared_bytes > 48 * 1024) return cudaErrorInvalidValue;
    return cudaSuccess;
  }();
  const auto put_grid = [&] {
    const std::uint64_t order = draw();
    return enqueue(stream, grid.kernel, [grid, body = std::move(body), order] {
      run_grid(grid, body, order);
      return true;
    });
  };
  const cudaError_t result = error == cudaSuccess ? put_grid() : error;
  // A launch says nothing itself: cudaGetLastError does, also of errors before it that nobody asked for.
  if (result != cudaSuccess) machine().last = result;
  return std::exchange(machine().last, machine().lost);
}

cudaEvent_t create_event(bool timed) {
  auto* const event = new CUevent_st;
  event->timed = timed;
  machine().events.insert(event);
  return event;
}

CUevent_st& event_of(cudaEvent_t event) {
  if (!machine().events.contains(event)) throw Violation("a call was given an event that does not exist");
  return *event;
}

void destroy_event(cudaEvent_t event) {
  machine().events.erase(event);
  // Work that was enqueued may still look at it.
  static std::vector<std::unique_ptr<CUevent_st>> kept;
  kept.emplace_back(event);
}

std::size_t live_objects() {
  const Machine& m = machine();
  return m.allocations.size() + m.streams.size() + m.events.size() + m.pinned.size() + live_graphs();
}

}  // namespace motley::sim
