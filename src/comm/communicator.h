// A group of ranks. All collectives here are implemented by non-blocking MPI calls that are polled until a
// deadline, yielding the processor while they wait; when the deadline passes, Error(communication) says what
// was waited for, for how long, and on which rank and host.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"

namespace motley::comm {

class Communicator {
 public:
  // A private duplicate of `parent` (so that threads with communicators of their own never mix messages),
  // with `timeout_s` as the deadline of every wait.
  explicit Communicator(MPI_Comm parent, double timeout_s = 600);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  MPI_Comm handle() const { return handle_; }
  double timeout_s() const { return timeout_s_; }
  const std::string& host() const { return host_; }

  // Each call says what it is for ("the plan of window 12"): the words appear in the sentence when it is
  // late.
  void barrier(const char* what) const;
  void broadcast(void* data, std::size_t bytes, int root, const char* what) const;
  std::string broadcast(std::string text, int root, const char* what) const;
  void all_reduce_sum(std::span<double> values, const char* what) const;
  void all_reduce_max(std::span<double> values, const char* what) const;
  // Every rank's `values` (equal lengths), in rank order, on every rank.
  std::vector<double> all_gather(std::span<const double> values, const char* what) const;
  // Every rank's text, in rank order, on the root (empty elsewhere).
  std::vector<std::string> gather(const std::string& text, int root, const char* what) const;
  // Sends parts[r] from the root to rank r (MPI_Scatterv); `parts` is looked at on the root only.
  std::vector<std::uint64_t> scatter(const std::vector<std::vector<std::uint64_t>>& parts, int root,
                                     const char* what) const;

  // Waits for `request` until the deadline. For callers that post their own non-blocking calls.
  void wait(MPI_Request& request, const char* what) const;

 private:
  MPI_Comm handle_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  double timeout_s_;
  std::string host_;
};

// OpenMP threads that this rank should use: its allowed processors divided by the ranks on this host that
// share them, at least 1. Collective over `world`.
int threads_per_rank(const Communicator& world);

}  // namespace motley::comm
