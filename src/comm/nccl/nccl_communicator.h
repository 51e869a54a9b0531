// NCCL's communicator of a group of ranks that each have a GPU, non-blocking, so that nothing waits without a
// deadline: each call returns at once, and what goes wrong on any rank is found by polling.
//
// After a failure nothing of NCCL is called any more, not even to abort: ncclCommAbort and ncclCommDestroy may
// wait for ranks that are gone. The error is thrown, its sentence said, and the job ends by abort_job().
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

#include "comm/communicator.h"

namespace motley::comm {

// The version of NCCL that this process has, as 22304 for 2.23.4; Error(communication) when it does not answer.
int nccl_version();

class NcclCommunicator {
 public:
  // One member per rank of `group`, each with the device that is current in its calling thread. The id is made
  // by the group's rank 0 and sent by MPI. Error(communication) when it does not come about before the group's
  // deadline. Collective.
  explicit NcclCommunicator(const Communicator& group);
  // Collective over the group, with its deadline, after which it is left behind.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }

  // Makes a call of NCCL with the communicator and waits until it is under way; the same order of calls on all
  // ranks. Throws Error(communication) with NCCL's words when it fails. Any thread, as are the others.
  void call(const char* name, const std::function<ncclResult_t(ncclComm_t)>& work);
  // Throws when the communicator has failed since.
  void check_health();
  void leave_behind() { failed_ = true; }

 private:
  [[noreturn]] void fail_with(ncclResult_t result, const char* call);
  void wait_until_ready(const char* what);

  const Communicator& group_;
  std::mutex mutex_;  // NCCL's calls on one communicator, polls included, are for one thread at a time
  ncclComm_t comm_ = nullptr;
  std::atomic<bool> failed_ = false;
};

}  // namespace motley::comm
