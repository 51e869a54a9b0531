// Stream capture and graphs, as the CUDA Runtime API manual and the CUDA C++ Programming Guide ("CUDA Graphs") describe
// them: what is put on a stream that is captured becomes nodes of a graph and does not run. A capture spreads to other
// streams that wait for its events, which must be joined again before it ends. What may not be done meanwhile is an
// error and makes the capture fail: to wait for a captured stream or event, or ask how far it is; to wait in it for what
// is not captured, or elsewhere for what is; and, but for relaxed captures, to allocate and free memory.
//
// A launch puts the nodes on its stream in some order that their dependencies allow, drawn anew each time. For races
// (races.h) nodes are in order where dependencies put them, and not because they run on one stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "cudart.h"

namespace motley::sim {

struct Node {
  Work work;
  std::set<std::size_t> after;  // nodes before this one in the same graph
};

struct Capture {
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool failed = false;
  std::vector<Node> nodes;
  std::map<Stream*, std::set<std::size_t>>
      ends;  // of each stream in it: what comes before the next node there
};

// For calls that are given streams and events.
bool is_captured(cudaStream_t stream);
// The call is none that a captured stream, or event, may be given: the capture fails.
cudaError_t refuse_while_captured(cudaStream_t stream);
cudaError_t refuse_captured_event(const CUevent_st& event);
cudaError_t capture_work(Stream& stream, Work work);
cudaError_t capture_record(Stream& stream, CUevent_st& event);
// One of the two is captured.
cudaError_t capture_wait(Stream& stream, const CUevent_st& event);

// A call that a capture does not see, such as one that allocates: true, and the captures have failed, where it is not
// allowed.
bool unsafe_while_captured();
// Those of the current device fail. False: there are none.
bool invalidate_captures();

std::size_t live_graphs();

}  // namespace motley::sim
