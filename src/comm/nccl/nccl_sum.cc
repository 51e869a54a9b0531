#include "comm/nccl/nccl_sum.h"

#include <utility>

#include "comm/backoff.h"
#include "comm/liveness.h"
#include "core/error.h"

namespace motley::comm {

NcclSum::NcclSum(std::unique_ptr<Communicator> gpus, bool any_cpu_ranks, std::unique_ptr<Communicator> hosts,
                 cudaStream_t compute, std::size_t most_values)
    : gpus_(std::move(gpus)), any_cpu_ranks_(any_cpu_ranks), compute_(compute) {
  if (gpus_->size() > 1) nccl_ = std::make_unique<NcclCommunicator>(*gpus_);
  if (hosts) {
    hosts_ = std::make_unique<HostSum>(*hosts);
    host_memory_ = std::make_unique<cuda::PinnedBuffer>(most_values * sizeof(double));
  }
  if (nccl_) connect();
}

NcclSum::~NcclSum() {
  if (under_way_ == 0) return;
  // MPI and the device may still write to it; the process is about to end.
  if (nccl_) nccl_->leave_behind();
  static_cast<void>(host_memory_.release());
}

// The first call of a kind connects the ranks, which takes memory and waits for the others: here all are waiting anyway.
void NcclSum::connect() {
  void* memory = nullptr;
  MOTLEY_CUDA(cudaMalloc(&memory, sizeof(double)));
  MOTLEY_CUDA(cudaMemsetAsync(memory, 0, sizeof(double), compute_));
  const View value{memory, DType::f64, Shape{1}};
  try {
    to_leader(value);
    if (any_cpu_ranks_) from_leader(value);
    wait("the first sum of statistics over GPUs");
  } catch (...) {
    nccl_->leave_behind();  // this object's destructor does not run
    throw;
  }
  MOTLEY_CUDA(cudaFree(memory));
}

// The sum over the GPUs, on all of them or, where it is handed on, on the leader.
void NcclSum::to_leader(View values) {
  const auto count = static_cast<std::size_t>(values.elements());
  if (any_cpu_ranks_) {
    nccl_->call("ncclReduce", [&](ncclComm_t comm) {
      return ncclReduce(values.data, values.data, count, ncclFloat64, ncclSum, 0, comm, compute_);
    });
  } else {
    nccl_->call("ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(values.data, values.data, count, ncclFloat64, ncclSum, comm, compute_);
    });
  }
}

void NcclSum::from_leader(View values) {
  const auto count = static_cast<std::size_t>(values.elements());
  nccl_->call("ncclBroadcast", [&](ncclComm_t comm) {
    return ncclBroadcast(values.data, values.data, count, ncclFloat64, 0, comm, compute_);
  });
}

void NcclSum::add_up(View values, const char* what) {
  MOTLEY_CHECK(values.dtype == DType::f64);
  if (nccl_) to_leader(values);
  if (hosts_) {
    MOTLEY_CHECK(values.bytes() <= host_memory_->bytes());
    void* const host = host_memory_->data();
    MOTLEY_CUDA(cudaMemcpyAsync(host, values.data, values.bytes(), cudaMemcpyDeviceToHost, compute_));
    wait(what);
    record(what);  // should it fail
    hosts_->add_up({host, DType::f64, values.shape}, what);
    MOTLEY_CUDA(cudaMemcpyAsync(values.data, host, values.bytes(), cudaMemcpyHostToDevice, compute_));
  }
  if (nccl_ && any_cpu_ranks_) from_leader(values);
  record(what);
}

void NcclSum::record(const char* what) {
  if (under_way_ == sums_.size()) sums_.emplace_back();
  UnderWay& sum = sums_[under_way_++];
  sum.what = what;
  MOTLEY_CUDA(cudaEventRecord(sum.done, compute_));
}

void NcclSum::wait(const char* what) {
  record(what);
  Backoff backoff;
  for (std::size_t i = 0; i < under_way_;) {
    const cudaError_t state = cudaEventQuery(sums_[i].done);
    if (state == cudaSuccess) {
      ++i;
      backoff.restart();
      continue;
    }
    if (state != cudaErrorNotReady) cuda::check(state, "cudaEventQuery");
    if (nccl_) nccl_->check_health();
    if (deadline_passed(backoff.waited_s(), gpus_->timeout_s()))
      throw gpus_->late(fmt::format("{}, on {}", sums_[i].what, cuda::device_text()).c_str());
    backoff.pause();
  }
  under_way_ = 0;
}

}  // namespace motley::comm
