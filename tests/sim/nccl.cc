// The calls of NCCL that the program makes, as its documentation describes them, over MPI: every member of a
// communicator sends what it has to the one that made the id, which sums in the order of ranks and sends the
// result back. Operations wait on their stream until all have come, as NCCL's do on a GPU.
//
// Communicators are non-blocking only, and strict:
//
//  * Most calls say ncclInProgress, and are done when ncclCommGetAsyncError, asked again and again, says ncclSuccess.
//    Before that neither the communicator nor the stream that an operation goes to may be used.
//  * One thread at a time in the calls of a communicator.
//  * What went wrong stays: every later call says so, and operations on streams never end. So do those whose peers
//    are gone, and whoever then waits for the stream or the device waits for ever, as on a GPU.
//  * ncclCommFinalize ends when all members have called it and their operations are done. ncclCommDestroy without
//    it would wait for them without any deadline: it is a Violation.
//
// MOTLEY_SIM_NCCL_VERSION is the version that this rank has (default: the header's).
#include <mpi.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cudart.h"
#include "device.h"
#include "races.h"
#include "simt.h"

namespace sim = motley::sim;

struct ncclComm {
  int root_world = 0;  // of the rank that made the id
  int tag = 0;
  int rank = 0, size = 1, device = 0;
  ncclResult_t async = ncclInProgress;
  std::uint64_t operations = 0, operations_done = 0;
  std::atomic<bool> in_call = false;
  bool finalized = false;
  // What the last call left to be done, and how many polls from now that happens.
  std::function<void()> launch;
  sim::Stream* stream = nullptr;  // of `launch`
  std::uint64_t polls = 0;
  // Meetings of all members: initialisation and the end.
  std::vector<int> world_ranks;  // by rank; on the root alone
  std::size_t heard = 0;
  std::int32_t hello[2] = {};
  bool said_hello = false;
  MPI_Request request = MPI_REQUEST_NULL;
  bool waits_for_answer = false;
  std::int32_t answer = 0;

  bool is_root() const { return !world_ranks.empty(); }
};

namespace {

constexpr std::int32_t id_magic = 0x4d53494d;
constexpr int first_tag = 20000, tags = 10000;  // below what MPI guarantees

struct Id {
  std::int32_t magic, root_world, number;
};

std::set<ncclComm_t>& communicators() {
  static std::set<ncclComm_t> all;
  return all;
}

ncclComm& known(ncclComm_t comm) {
  if (!communicators().contains(comm))
    throw sim::Violation("a call of NCCL was given a communicator that does not exist");
  return *comm;
}

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

template <class F>
ncclResult_t entry(const char* name, F work) {
  const sim::Call call(name);
  if (call.fault()) return static_cast<ncclResult_t>(*call.fault());
  return work();
}

// A call with a communicator, which takes a moment, so that a second thread in it is met.
class Inside {
 public:
  Inside(const char* name, ncclComm_t handle) {
    const std::lock_guard guard(sim::lock());
    comm_ = &known(handle);
    if (comm_->in_call.exchange(true))
      throw sim::Violation(std::string(name) + ": another thread is in a call with the same communicator");
    sim::unlocked([] { std::this_thread::sleep_for(std::chrono::microseconds(20)); });
  }
  ~Inside() {
    if (comm_ != nullptr) comm_->in_call = false;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  ncclComm& comm() const { return *comm_; }
  void destroyed() { comm_ = nullptr; }

 private:
  ncclComm* comm_ = nullptr;
};

// A call that uses a communicator, which must be ready.
template <class F>
ncclResult_t entry(const char* name, ncclComm_t handle, F work) {
  Inside inside(name, handle);
  ncclComm& comm = inside.comm();
  const sim::Call call(name);
  if (comm.async == ncclInProgress)
    throw sim::Violation(std::string(name) + ": the communicator is not ready: poll ncclCommGetAsyncError");
  if (comm.async != ncclSuccess) return comm.async;
  if (call.fault()) return comm.async = static_cast<ncclResult_t>(*call.fault());
  if (sim::lost_device() != cudaSuccess) return comm.async = ncclUnhandledCudaError;
  return work(inside);
}

// Every member's rank and size go to the root.
void say_hello(ncclComm& comm) {
  comm.said_hello = true;
  comm.waits_for_answer = false;
  comm.hello[0] = comm.rank;
  comm.hello[1] = comm.size;
  comm.heard = 1;
  if (!comm.is_root() && comm.size > 1)
    MPI_Isend(comm.hello, 2, MPI_INT32_T, comm.root_world, comm.tag, MPI_COMM_WORLD, &comm.request);
}

// A step of a meeting towards its end, which is when all members know that all have come.
void meet(ncclComm& comm) {
  if (comm.operations_done < comm.operations) {
    sim::progress();
    return;
  }
  if (!comm.said_hello) say_hello(comm);
  if (comm.size == 1) {
    comm.async = ncclSuccess;
    return;
  }
  int done = 0;
  if (comm.is_root()) {
    for (;;) {
      if (comm.request == MPI_REQUEST_NULL)
        MPI_Irecv(comm.hello, 2, MPI_INT32_T, MPI_ANY_SOURCE, comm.tag, MPI_COMM_WORLD, &comm.request);
      MPI_Status status;
      MPI_Test(&comm.request, &done, &status);
      if (!done) return;
      if (comm.hello[1] != comm.size) {
        throw sim::Violation("ncclCommInitRankConfig: one rank says " + std::to_string(comm.hello[1]) +
                             " ranks, another " + std::to_string(comm.size));
      }
      if (!comm.finalized) {
        int& place = comm.world_ranks.at(static_cast<std::size_t>(comm.hello[0]));
        if (place >= 0) throw sim::Violation("ncclCommInitRankConfig: two members have the same rank");
        place = status.MPI_SOURCE;
      }
      if (++comm.heard < static_cast<std::size_t>(comm.size)) continue;
      for (const int member : comm.world_ranks) {
        if (member == world_rank()) continue;
        const std::int32_t answer = 1;
        MPI_Send(&answer, 1, MPI_INT32_T, member, comm.tag, MPI_COMM_WORLD);
      }
      comm.async = ncclSuccess;
      return;
    }
  }
  MPI_Test(&comm.request, &done, MPI_STATUS_IGNORE);
  if (!done) return;
  if (!comm.waits_for_answer) {
    comm.waits_for_answer = true;
    MPI_Irecv(&comm.answer, 1, MPI_INT32_T, comm.root_world, comm.tag, MPI_COMM_WORLD, &comm.request);
    return;
  }
  comm.async = ncclSuccess;
}

// What a poll of a communicator that is in progress achieves.
void go_on(ncclComm& comm) {
  if (!comm.launch) return meet(comm);
  if (comm.polls-- > 1) return;
  comm.stream->awaits = nullptr;
  comm.async = ncclSuccess;
  std::exchange(comm.launch, nullptr)();
}

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
      return 4;
    case ncclBfloat16:
    case ncclFloat16:
      return 2;
    default:
      throw sim::Violation("NCCL: data type " + std::to_string(type) + " is not simulated");
  }
}

template <class T, class ToFloat, class FromFloat>
void add(std::byte* to, const std::byte* from, std::size_t count, ToFloat to_float, FromFloat from_float) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, to + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = from_float(to_float(a) + to_float(b));
    std::memcpy(to + i * sizeof(T), &a, sizeof(T));
  }
}

void add(ncclDataType_t type, std::byte* to, const std::byte* from, std::size_t count) {
  const auto same = [](auto x) { return x; };
  if (type == ncclFloat64) add<double>(to, from, count, same, same);
  if (type == ncclFloat32) add<float>(to, from, count, same, same);
  if (type == ncclBfloat16)
    add<__nv_bfloat16>(to, from, count, __bfloat162float, [](float x) { return __float2bfloat16_rn(x); });
  if (type == ncclFloat16)
    add<__half>(to, from, count, __half2float, [](float x) { return __float2half_rn(x); });
}

enum class Kind : std::int32_t { all_reduce, reduce, broadcast };

struct Header {
  Kind kind;
  std::int32_t type, root;
  std::int64_t count, number;
  bool operator==(const Header&) const = default;
};

// One operation of one rank, from when its stream comes to it. A message is a header and, where the kind of
// operation has any, data.
struct Operation {
  Header header{};
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t bytes = 0;

  bool begun = false;
  std::vector<std::vector<std::byte>> messages;  // root: one per other member; else: its own and the answer
  std::vector<MPI_Request> requests;
  bool answering = false;
  std::vector<std::byte> result;

  bool sends(int rank) const { return header.kind != Kind::broadcast || rank == header.root; }
  bool receives(int rank) const { return header.kind != Kind::reduce || rank == header.root; }

  std::vector<std::byte> message(bool data) const {
    std::vector<std::byte> m(sizeof(Header) + (data ? bytes : 0));
    std::memcpy(m.data(), &header, sizeof(Header));
    if (data) {
      const sim::Access access;
      sim::races::range(send, bytes, false);
      std::memcpy(m.data() + sizeof(Header), send, bytes);
    }
    return m;
  }

  bool all_done() {
    int done = 0;
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    return done != 0;
  }

  void post(bool to_send, std::vector<std::byte>& m, int world, int tag) {
    requests.emplace_back();
    const int n = static_cast<int>(m.size());
    if (to_send) {
      MPI_Isend(m.data(), n, MPI_BYTE, world, tag, MPI_COMM_WORLD, &requests.back());
    } else {
      MPI_Irecv(m.data(), n, MPI_BYTE, world, tag, MPI_COMM_WORLD, &requests.back());
    }
  }

  bool run(ncclComm& comm) {
    if (comm.async != ncclSuccess && comm.async != ncclInProgress) return false;
    bool done = true;
    if (comm.size == 1) {
      const sim::Access access;
      sim::races::range(send, bytes, false);
      sim::races::range(receive, bytes, true);
      if (receive != send) std::memmove(receive, send, bytes);
    } else {
      done = comm.is_root() ? run_root(comm) : run_member(comm);
    }
    if (done) ++comm.operations_done;
    return done;
  }

  bool run_root(ncclComm& comm) {
    const auto members = static_cast<std::size_t>(comm.size);
    if (!begun) {
      begun = true;
      messages.resize(members);
      for (std::size_t r = 0; r < members; ++r) {
        const int rank = static_cast<int>(r);
        if (rank == comm.rank) {
          messages[r] = message(sends(rank));
          continue;
        }
        messages[r].resize(sizeof(Header) + (sends(rank) ? bytes : 0));
        post(false, messages[r], comm.world_ranks[r], comm.tag);
      }
    }
    if (!all_done()) return false;
    if (!answering) {
      answering = true;
      for (const auto& m : messages) {
        Header theirs{};
        std::memcpy(&theirs, m.data(), sizeof(Header));
        if (!(theirs == header))
          throw sim::Violation("NCCL: the members of a communicator called different operations");
      }
      for (std::size_t r = 0; r < members; ++r) {
        if (!sends(static_cast<int>(r))) continue;
        const std::byte* const data = messages[r].data() + sizeof(Header);
        if (result.empty()) {
          result.assign(data, data + bytes);
        } else {
          add(static_cast<ncclDataType_t>(header.type), result.data(), data,
              static_cast<std::size_t>(header.count));
        }
      }
      requests.clear();
      for (std::size_t r = 0; r < members; ++r)
        if (static_cast<int>(r) != comm.rank && receives(static_cast<int>(r)))
          post(true, result, comm.world_ranks[r], comm.tag + 1);
      if (!all_done()) return false;
    }
    take_result(comm);
    return true;
  }

  bool run_member(ncclComm& comm) {
    if (!begun) {
      begun = true;
      messages.push_back(message(sends(comm.rank)));
      post(true, messages[0], comm.root_world, comm.tag);
      if (receives(comm.rank)) {
        result.resize(bytes);
        post(false, result, comm.root_world, comm.tag + 1);
      }
    }
    if (!all_done()) return false;
    take_result(comm);
    return true;
  }

  void take_result(const ncclComm& comm) {
    if (!receives(comm.rank)) return;
    const sim::Access access;
    sim::races::range(receive, bytes, true);
    std::memcpy(receive, result.data(), bytes);
  }
};

ncclResult_t put(const char* name, Kind kind, const void* send, void* receive, std::size_t count,
                 ncclDataType_t type, int root, ncclComm_t handle, cudaStream_t stream) {
  return entry(name, handle, [&](Inside& inside) {
    ncclComm& comm = inside.comm();
    if (comm.finalized) throw sim::Violation(std::string(name) + ": the communicator has been finalized");
    if (root < 0 || root >= comm.size) return ncclInvalidArgument;
    if (comm.device != sim::current_device())
      throw sim::Violation(std::string(name) + ": another device was current when the communicator was made");
    const auto operation = std::make_shared<Operation>();
    operation->bytes = count * size_of(type);
    operation->header = {kind, static_cast<std::int32_t>(type), root, static_cast<std::int64_t>(count),
                         static_cast<std::int64_t>(comm.operations++)};
    operation->send = send;
    operation->receive = receive;
    if (operation->sends(comm.rank))
      sim::check_device(name, "sendbuff", send, operation->bytes, size_of(type));
    if (operation->receives(comm.rank))
      sim::check_device(name, "recvbuff", receive, operation->bytes, size_of(type));
    sim::Stream& on = sim::stream_of(stream);
    if (on.capture)
      throw sim::Violation(std::string(name) + ": the stream is being captured, which is not simulated");
    auto launch = [&comm, &on, name, operation] {
      if (sim::put(on, {name, [&comm, operation] { return operation->run(comm); }, false, true}) !=
          cudaSuccess)
        throw sim::Violation(std::string(name) + ": the stream has been captured since");
    };
    // Every fourth is under way when the call returns.
    comm.polls = comm.operations % 4;
    if (comm.polls == 0) {
      launch();
      return ncclSuccess;
    }
    comm.launch = std::move(launch);
    comm.stream = &on;
    on.awaits = name;
    return comm.async = ncclInProgress;
  });
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  return entry("ncclGetVersion", [&] {
    const char* const text = std::getenv("MOTLEY_SIM_NCCL_VERSION");
    *version = text == nullptr ? NCCL_VERSION_CODE : std::atoi(text);
    return ncclSuccess;
  });
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return entry("ncclGetUniqueId", [&] {
    static int number = 0;
    const Id made{id_magic, world_rank(), number++};
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id, &made, sizeof(made));
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId unique, int rank,
                                    ncclConfig_t* config) {
  return entry("ncclCommInitRankConfig", [&] {
    Id id;
    std::memcpy(&id, &unique, sizeof(id));
    if (id.magic != id_magic || rank < 0 || rank >= size) return ncclInvalidArgument;
    if (config == nullptr || config->blocking != 0)
      throw sim::Violation("ncclCommInitRankConfig: only non-blocking communicators are simulated");
    auto* const made = new ncclComm;
    made->root_world = id.root_world;
    made->tag = first_tag + 2 * (id.number % (tags / 2));
    made->rank = rank;
    made->size = size;
    made->device = sim::current_device();
    if (id.root_world == world_rank()) {
      made->world_ranks.assign(static_cast<std::size_t>(size), -1);
      made->world_ranks[static_cast<std::size_t>(rank)] = world_rank();
    }
    say_hello(*made);
    communicators().insert(made);
    *comm = made;
    return ncclInProgress;
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  const Inside inside("ncclCommGetAsyncError", handle);
  const sim::Call call("ncclCommGetAsyncError");
  ncclComm& comm = inside.comm();
  if (call.fault()) {
    comm.async = static_cast<ncclResult_t>(*call.fault());
    if (std::exchange(comm.launch, nullptr)) comm.stream->awaits = nullptr;
  }
  if (comm.async == ncclInProgress) go_on(comm);
  *error = comm.async;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return entry("ncclCommFinalize", handle, [&](Inside& inside) {
    ncclComm& comm = inside.comm();
    if (comm.finalized) throw sim::Violation("ncclCommFinalize: the communicator has been finalized before");
    comm.finalized = true;
    comm.said_hello = false;
    return comm.async = ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return entry("ncclCommDestroy", handle, [&](Inside& inside) {
    if (!inside.comm().finalized)
      throw sim::Violation("ncclCommDestroy: without ncclCommFinalize it may wait for ever for other ranks");
    inside.destroyed();
    communicators().erase(handle);
    delete handle;
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) {
  return "";
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t operation, ncclComm_t comm, cudaStream_t stream) {
  if (operation != ncclSum) throw sim::Violation("ncclAllReduce: only sums are simulated");
  return put("ncclAllReduce", Kind::all_reduce, send, receive, count, type, 0, comm, stream);
}

ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, int root, ncclComm_t comm, cudaStream_t stream) {
  if (operation != ncclSum) throw sim::Violation("ncclReduce: only sums are simulated");
  return put("ncclReduce", Kind::reduce, send, receive, count, type, root, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return put("ncclBroadcast", Kind::broadcast, send, receive, count, type, root, comm, stream);
}

}  // extern "C"
