// A group of ranks. All collectives here are implemented by non-blocking MPI calls that are polled until a
// deadline, yielding the processor while they wait; when the deadline passes, Error(communication) says what
// was waited for, for how long, and on which rank and host, and where it is known which ranks did not arrive.
//
// After a deadline MPI may still write to the buffers of the call that was late. Those that the Communicator
// made are kept for ever; those of broadcast(void*) and wait() are the caller's. Report the error and end by
// abort_job().
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace motley::comm {

class Communicator {
 public:
  // What one MPI call moves at most; larger messages are split (counts and displacements in MPI are ints).
  static constexpr std::size_t max_message_bytes = std::size_t{1} << 30;

  // A private duplicate of `parent` (so that threads with communicators of their own never mix messages),
  // with `timeout_s` as the deadline of every wait. Collective. `message_bytes` is lowered by tests only.
  explicit Communicator(MPI_Comm parent, double timeout_s = 600,
                        std::size_t message_bytes = max_message_bytes);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm handle() const { return handle_; }
  double timeout_s() const { return timeout_s_; }
  const std::string& host() const { return host_; }
  // The rank that sentences name: this one's in the whole run, where the communicator is of a part of it.
  int spoken_rank() const { return spoken_rank_; }
  void speak_as(int rank) { spoken_rank_ = rank; }

  // Each call says what it is for ("the plan of window 12"): the words appear in the sentence when it is
  // late.
  void barrier(const char* what) const;
  // For large arenas. After a deadline MPI may still write to `data`, which must therefore live until the
  // process ends by abort_job(): no local variable. The other calls take copies that outlive the wait.
  void broadcast(void* data, std::size_t bytes, int root, const char* what) const;
  // The root's number, on every rank.
  double broadcast(double value, int root, const char* what) const;
  std::string broadcast(std::string text, int root, const char* what) const;
  void all_reduce_sum(std::span<double> values, const char* what) const;
  void all_reduce_max(std::span<double> values, const char* what) const;
  // Every rank's `values` (equal lengths), in rank order, on every rank.
  std::vector<double> all_gather(std::span<const double> values, const char* what) const;
  // Every rank's `values` (equal lengths), in rank order, on the root; empty elsewhere.
  std::vector<double> gather(std::span<const double> values, int root, const char* what) const;
  // Sends parts[r] from the root to rank r (MPI_Scatterv); `parts` is looked at on the root only.
  std::vector<std::uint64_t> scatter(const std::vector<std::vector<std::uint64_t>>& parts, int root,
                                     const char* what) const;

  // Waits for `request` until the deadline. For callers that post their own non-blocking calls.
  void wait(MPI_Request& request, const char* what) const;

  // The error of a wait that is over its deadline, for callers that poll by themselves. `missing`: the ranks
  // that are known not to have arrived. Includes abandon().
  Error late(const char* what, std::span<const int> missing = {}) const;
  // From here on the destructor leaves the communicator alone, because freeing it could wait for what never
  // comes.
  void abandon() const { broken_ = true; }

 private:
  void wait_each(std::span<MPI_Request> by_rank, const char* what) const;
  void all_reduce(std::span<double> values, MPI_Op operation, const char* what) const;

  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1, spoken_rank_ = 0;
  double timeout_s_;
  std::size_t message_bytes_;
  std::string host_;
  mutable bool broken_ = false;
};

// The ranks that run on this rank's host, and those of which `member` is true (null on the others), in the order
// of their ranks. Collective over `world`.
std::unique_ptr<Communicator> ranks_of_host(const Communicator& world);
std::unique_ptr<Communicator> part_of(const Communicator& world, bool member);

// The processors that this rank may run on, and the ranks of its host, itself included, that have the same
// ones.
struct ProcessorShare {
  int processors = 1;
  int ranks = 1;
  int host_ranks = 1;  // all of its host: they share the memory
  // Of these and of those, the ones whose work a GPU does.
  int gpu_ranks = 0;
  int host_gpu_ranks = 0;
};

// Collective over `world`. `has_gpu`: a GPU does the work of this rank.
ProcessorShare processor_share(const Communicator& world, bool has_gpu = false);

// OpenMP threads that a CPU rank should use: its part of the processors, of which ranks with a GPU need one each; at
// least 1. OMP_NUM_THREADS in the environment wins.
int threads_per_rank(const ProcessorShare& share);
// Threads of this rank and of those with the same processors, when each CPU rank has `threads`, over processors.
double crowding(const ProcessorShare& share, int threads);
// What a CPU rank may use of `host_bytes`, the memory of its host: an equal part of what ranks with a GPU leave, which
// keep as much as in equal parts of all, but not more than 4 GiB each.
std::size_t memory_per_cpu_rank(std::size_t host_bytes, const ProcessorShare& share);

}  // namespace motley::comm
