#include "kernels/cuda/graphs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/log.h"
#include "kernels/cuda/cuda.h"

namespace motley::cuda {
namespace {

// Of a run: two or three sizes of micro-batches, each in a few places of a step.
constexpr std::size_t stretches_kept = 16;
constexpr std::size_t variants_kept = 4;

// Errors that say no more than that there will be no graph. All others are those of a device in trouble.
bool refuses_graphs(cudaError_t error) {
  return (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread) ||
         error == cudaErrorMemoryAllocation || error == cudaErrorNotSupported ||
         error == cudaErrorInvalidValue || error == cudaErrorIllegalState;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "(unknown)";
}

}  // namespace

void Graphs::run(const StretchKey& key, const std::function<void()>& work,
                 const std::function<void()>& rehearsal) {
  MOTLEY_CHECK(!open_);
  if (!on_) {
    stretches_.clear();
    return work();
  }
  Stretch& stretch = find(key);
  if (stretch.passes == 1) {
    if (const auto why = capture(nullptr, rehearsal)) leave_out(*why);
  }
  if (!on_ || stretch.passes == 0) {
    work();
  } else if (const auto why = capture(&stretch, work)) {
    leave_out(*why);
    throw StretchLost(*why);
  }
  // All may have been forgotten on the way.
  if (const auto known = stretches_.find(key); known != stretches_.end()) ++known->second.passes;
}

Graphs::Stretch& Graphs::find(const StretchKey& key) {
  if (!stretches_.contains(key) && stretches_.size() >= stretches_kept) {
    stretches_.erase(std::min_element(stretches_.begin(), stretches_.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    }));
  }
  Stretch& stretch = stretches_[key];
  stretch.used = ++uses_;
  return stretch;
}

// Does the work in graphs. Why a capture failed, if one did; throws what else goes wrong. The stream can be used either
// way.
std::optional<std::string> Graphs::capture(Stretch* stretch, const std::function<void()>& work) {
  stretch_ = stretch;
  piece_ = 0;
  lost_ = false;
  open_ = true;
  try {
    work();
    interrupt();
  } catch (const Error& error) {
    const bool lost = lost_ || was_invalidated();
    abandon();
    if (!lost) throw;
    cudaGetLastError();  // so that the next launch does not find it
    return error.what();
  } catch (...) {
    abandon();
    throw;
  }
  open_ = false;
  return {};
}

void Graphs::begin_capture() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (capturing_) return;
  const cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
  capturing_ = error == cudaSuccess;
  if (capturing_) return;
  if (stretch_ == nullptr || !refuses_graphs(error)) return check(error, "cudaStreamBeginCapture");
  // Nothing is missing: the stretch goes on without.
  cudaGetLastError();
  open_ = false;
  leave_out(error_text(error, "cudaStreamBeginCapture"));
}

void Graphs::interrupt() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (!capturing_) return;
  capturing_ = false;
  cudaGraph_t handle = nullptr;
  check(cudaStreamEndCapture(stream_, &handle), "cudaStreamEndCapture");
  const Graph graph(handle);
  std::size_t nodes = 0;
  check(cudaGraphGetNodes(handle, nullptr, &nodes), "cudaGraphGetNodes");
  if (nodes == 0) return;
  if (stretch_ == nullptr) {
    instantiate(graph);
  } else {
    launch(*stretch_, graph, nodes);
  }
}

void Graphs::interrupt_quietly() noexcept {
  if (failure_) return;
  try {
    interrupt();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void Graphs::launch(Stretch& stretch, const Graph& graph, std::size_t nodes) {
  if (piece_ == stretch.pieces.size()) stretch.pieces.emplace_back();
  std::vector<Variant>& variants = stretch.pieces[piece_++];
  auto variant =
      std::find_if(variants.begin(), variants.end(), [&](const Variant& v) { return v.nodes == nodes; });
  if (variant != variants.end() && !update(*variant, graph)) {
    variants.erase(variant);
    variant = variants.end();
  }
  if (variant == variants.end()) {
    if (variants.size() == variants_kept) variants.erase(variants.begin());
    variant = variants.insert(variants.end(), {nodes, instantiate(graph)});
  }
  check(cudaGraphLaunch(variant->executable.get(), stream_), "cudaGraphLaunch");
}

// False: the two differ in more than an update can change.
bool Graphs::update(const Variant& variant, const Graph& graph) {
  cudaGraphExecUpdateResultInfo info{};
  const cudaError_t error = cudaGraphExecUpdate(variant.executable.get(), graph.get(), &info);
  if (error == cudaErrorGraphExecUpdateFailure) {
    cudaGetLastError();
    return false;
  }
  check(error, "cudaGraphExecUpdate");
  return true;
}

Graphs::Executable Graphs::instantiate(const Graph& graph) {
  cudaGraphExec_t executable = nullptr;
  check(cudaGraphInstantiate(&executable, graph.get(), 0), "cudaGraphInstantiate");
  return Executable(executable);
}

void Graphs::check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  lost_ = refuses_graphs(error);
  throw_cuda_error(error, call);
}

// By a call that is none of this class's.
bool Graphs::was_invalidated() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return capturing_ && cudaStreamIsCapturing(stream_, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusInvalidated;
}

void Graphs::abandon() noexcept {
  open_ = false;
  failure_ = nullptr;
  if (!capturing_) return;
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_, &graph);
  const Graph destroyed(graph);
}

void Graphs::leave_out(const std::string& why) {
  on_ = false;
  log::warn("CUDA graphs are left out from here on, on host {}: {}", host_name(), why);
}

void Graphs::forget() {
  if (!open_) stretches_.clear();
}

}  // namespace motley::cuda
