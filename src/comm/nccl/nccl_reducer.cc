#include "comm/nccl/nccl_reducer.h"

#include <algorithm>
#include <utility>

#include "comm/backoff.h"
#include "comm/liveness.h"
#include "core/clock.h"

namespace motley::comm {
namespace {

ncclDataType_t nccl_type(DType dtype) {
  return dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
}

}  // namespace

NcclReducer::NcclReducer(std::unique_ptr<Communicator> gpus, Mixed mixed,
                         std::function<cudaStream_t()> compute, std::size_t elements,
                         std::size_t bucket_bytes, DType dtype)
    : GradientReducer(elements, bucket_bytes, dtype),
      gpus_(std::move(gpus)),
      mixed_(std::move(mixed)),
      compute_(std::move(compute)),
      stream_(true) {
  MOTLEY_CUDA(cudaGetDevice(&device_));
  if (gpus_->size() > 1) nccl_ = std::make_unique<NcclCommunicator>(*gpus_);
  for (std::size_t i = 0; i < buckets(); ++i) {
    ready_events_.emplace_back();
    summed_events_.emplace_back();
  }
  if (mixed_.hosts) {
    host_memory_ = std::make_unique<cuda::PinnedBuffer>(elements * size_of(dtype));
    host_reducer_ = std::make_unique<HostReducer>(*mixed_.hosts, elements, bucket_bytes, dtype);
    thread_ = std::thread([this] { hand_on(); });
  }
  if (nccl_ && elements > 0) connect();
}

NcclReducer::~NcclReducer() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  if (!in_step_) return;
  // MPI and the device may still write to it; the process is about to end.
  if (nccl_) nccl_->leave_behind();
  static_cast<void>(host_memory_.release());
}

// NCCL connects ranks, and takes the memory for it, when a kind of sum is first used, which waits for the others.
// Here all are waiting anyway; in a backward pass the wait would count as work.
void NcclReducer::connect() {
  std::size_t largest = elements();
  if (!mixed_.any_cpu_ranks) {
    largest = 0;
    for (std::size_t b = 0; b < buckets(); ++b) largest = std::max(largest, bucket_elements(b));
  }
  void* memory = nullptr;
  MOTLEY_CUDA(cudaMalloc(&memory, largest * size_of(dtype())));
  MOTLEY_CUDA(cudaMemsetAsync(memory, 0, largest * size_of(dtype()), stream_));
  for (const std::size_t b : {std::size_t{0}, buckets() - 1}) sum_over_gpus(memory, bucket_elements(b));
  if (mixed_.any_cpu_ranks) broadcast_from_leader(memory, largest);
  MOTLEY_CUDA(cudaEventRecord(done_, stream_));
  in_step_ = true;  // should it fail
  wait_for(done_, 0);
  in_step_ = false;
  MOTLEY_CUDA(cudaFree(memory));
}

void NcclReducer::sum_over_gpus(void* data, std::size_t count) {
  if (mixed_.any_cpu_ranks) {
    nccl_->call("ncclReduce", [&](ncclComm_t comm) {
      return ncclReduce(data, data, count, nccl_type(dtype()), ncclSum, 0, comm, stream_);
    });
  } else {
    nccl_->call("ncclAllReduce", [&](ncclComm_t comm) {
      return ncclAllReduce(data, data, count, nccl_type(dtype()), ncclSum, comm, stream_);
    });
  }
}

void NcclReducer::broadcast_from_leader(void* data, std::size_t count) {
  nccl_->call("ncclBroadcast", [&](ncclComm_t comm) {
    return ncclBroadcast(data, data, count, nccl_type(dtype()), 0, comm, stream_);
  });
}

std::byte* NcclReducer::bucket_data(std::size_t bucket) const {
  return static_cast<std::byte*>(gradients_.data) + bucket_begin(bucket) * size_of(dtype());
}

void NcclReducer::begin(View gradients) {
  MOTLEY_CHECK(!in_step_ || !sent_);
  MOTLEY_CHECK(gradients.dtype == dtype() &&
               static_cast<std::size_t>(gradients.elements()) == elements());
  gradients_ = gradients;
  in_step_ = true;
  ready_ = posted_ = 0;
  sent_ = false;
  if (!host_reducer_) return;
  const std::lock_guard lock(mutex_);
  to_hand_on_ = handed_on_ = 0;
  host_reducer_->begin({host_memory_->data(), dtype(), gradients.shape});
}

void NcclReducer::ready_up_to(std::size_t ready) {
  MOTLEY_CHECK(in_step_ && ready >= ready_ && ready <= elements());
  ready_ = ready;
  for (const std::size_t whole = whole_buckets(ready); posted_ < whole; ++posted_) post(posted_);
}

// Puts the sum of a bucket over the GPUs on the stream.
void NcclReducer::post(std::size_t bucket) {
  const cudaStream_t compute = compute_();
  sent_ = true;
  MOTLEY_CUDA(cudaEventRecord(ready_events_[bucket], compute));
  MOTLEY_CUDA(cudaStreamWaitEvent(stream_, ready_events_[bucket], 0));
  std::byte* const data = bucket_data(bucket);
  const std::size_t count = bucket_elements(bucket);
  if (nccl_) sum_over_gpus(data, count);
  if (host_reducer_) {
    auto* const host = static_cast<std::byte*>(host_memory_->data()) + bucket_begin(bucket) * size_of(dtype());
    MOTLEY_CUDA(cudaMemcpyAsync(host, data, count * size_of(dtype()), cudaMemcpyDeviceToHost, stream_));
  }
  MOTLEY_CUDA(cudaEventRecord(summed_events_[bucket], stream_));
  if (!host_reducer_) return;
  {
    const std::lock_guard lock(mutex_);
    to_hand_on_ = bucket + 1;
  }
  wake_.notify_one();
}

// Polls until the device has come to `event`, which follows the sum of `bucket`.
void NcclReducer::wait_for(cudaEvent_t event, std::size_t bucket) {
  Backoff backoff;
  for (;;) {
    const cudaError_t state = cudaEventQuery(event);
    if (state == cudaSuccess) return;
    if (state != cudaErrorNotReady) cuda::check(state, "cudaEventQuery");
    if (nccl_) nccl_->check_health();
    if (stop_) fail(ExitCode::communication, "the sum of gradients was given up");
    if (deadline_passed(backoff.waited_s(), gpus_->timeout_s())) {
      throw gpus_->late(fmt::format("gradient bucket {} of {}, to be summed over GPUs, on {}", bucket + 1, buckets(),
                                    cuda::device_text())
                            .c_str());
    }
    backoff.pause();
  }
}

// The leader's thread: what the GPUs have summed goes to the CPU ranks.
void NcclReducer::hand_on() {
  try {
    MOTLEY_CUDA(cudaSetDevice(device_));
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || handed_on_ < to_hand_on_; });
      if (stop_) return;
      const std::size_t bucket = handed_on_;
      lock.unlock();
      wait_for(summed_events_[bucket], bucket);
      host_reducer_->ready_up_to(bucket_ends()[bucket]);
      lock.lock();
      ++handed_on_;
      if (handed_on_ == buckets()) wake_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    wake_.notify_all();
  }
}

// What throws leaves the step open: the object is of no use after that.
double NcclReducer::finish() {
  const double started_s = now_s();
  ready_up_to(elements());
  if (elements() == 0) {
    in_step_ = false;
    return 0;
  }
  // The host waits here, with a deadline, and not in a call of CUDA, which has none.
  if (host_reducer_) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return handed_on_ == buckets() || failure_; });
      if (failure_) std::rethrow_exception(failure_);
    }
    host_reducer_->finish();
    MOTLEY_CUDA(cudaMemcpyAsync(gradients_.data, host_memory_->data(), gradients_.bytes(), cudaMemcpyHostToDevice,
                                stream_));
  } else {
    for (std::size_t bucket = 0; bucket < buckets(); ++bucket) wait_for(summed_events_[bucket], bucket);
  }
  if (nccl_ && mixed_.any_cpu_ranks) broadcast_from_leader(gradients_.data, elements());
  MOTLEY_CUDA(cudaEventRecord(done_, stream_));
  wait_for(done_, buckets() - 1);
  MOTLEY_CUDA(cudaStreamWaitEvent(compute_(), done_, 0));
  in_step_ = false;
  return now_s() - started_s;
}

}  // namespace motley::comm
