#include "comm/nccl/nccl_communicator.h"

#include <cstdlib>

#include "comm/backoff.h"
#include "comm/liveness.h"
#include "core/log.h"
#include "kernels/cuda/cuda.h"

namespace motley::comm {

int nccl_version() {
  int version = 0;
  const ncclResult_t result = ncclGetVersion(&version);
  if (result != ncclSuccess)
    fail(ExitCode::communication, "ncclGetVersion failed on {}: {}", cuda::device_text(),
         ncclGetErrorString(result));
  return version;
}

NcclCommunicator::NcclCommunicator(const Communicator& group) : group_(group) {
  // The environment and NCCL's own files would win over the configuration below.
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  ncclUniqueId id{};
  if (group.rank() == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) fail_with(result, "ncclGetUniqueId");
  }
  const std::string bytes =
      group.broadcast(std::string(id.internal, sizeof(id.internal)), 0, "the id of NCCL's communicator");
  bytes.copy(id.internal, sizeof(id.internal));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const std::lock_guard lock(mutex_);
  const ncclResult_t result = ncclCommInitRankConfig(&comm_, group.size(), id, group.rank(), &config);
  if (result != ncclSuccess && result != ncclInProgress) fail_with(result, "ncclCommInitRankConfig");
  wait_until_ready("NCCL's communicator");
}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr || failed_) return;
  try {
    const std::lock_guard lock(mutex_);
    ncclResult_t result = ncclCommFinalize(comm_);
    if (result != ncclSuccess && result != ncclInProgress) fail_with(result, "ncclCommFinalize");
    wait_until_ready("the end of NCCL's communicator");
    result = ncclCommDestroy(comm_);
    if (result != ncclSuccess) fail_with(result, "ncclCommDestroy");
  } catch (const Error& error) {
    // All sums are done. What other ranks then wait for has a reason that somebody must give.
    log::warn("{}", error.what());
  }
}

void NcclCommunicator::fail_with(ncclResult_t result, const char* call) {
  const char* const detail = comm_ == nullptr ? "" : ncclGetLastError(comm_);
  failed_ = true;
  fail(ExitCode::communication, "rank {} (host {}): {} failed on {}: {}{}{}", group_.spoken_rank(),
       group_.host(), call, cuda::device_text(), ncclGetErrorString(result), detail[0] == 0 ? "" : ": ",
       detail);
}

void NcclCommunicator::call(const char* name, const std::function<ncclResult_t(ncclComm_t)>& work) {
  const std::lock_guard lock(mutex_);
  const ncclResult_t result = work(comm_);
  if (result == ncclInProgress) return wait_until_ready(name);
  if (result != ncclSuccess) fail_with(result, name);
}

void NcclCommunicator::check_health() {
  const std::lock_guard lock(mutex_);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
  if (result != ncclSuccess) fail_with(result, "ncclCommGetAsyncError");
  if (state != ncclSuccess && state != ncclInProgress) fail_with(state, "a sum over GPUs");
}

// Holds the mutex's lock.
void NcclCommunicator::wait_until_ready(const char* what) {
  Backoff backoff;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = ncclCommGetAsyncError(comm_, &state);
    if (result != ncclSuccess) fail_with(result, "ncclCommGetAsyncError");
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) fail_with(state, what);
    if (deadline_passed(backoff.waited_s(), group_.timeout_s())) {
      failed_ = true;
      throw group_.late(what);
    }
    backoff.pause();
  }
}

}  // namespace motley::comm
