#include "graphs.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "simt.h"

namespace sim = motley::sim;

// What cudaGraph_t and cudaGraphExec_t point to.
struct CUgraph_st {
  std::vector<sim::Node> nodes;
};

namespace {

// Launches of an executable graph run one after the other, on whatever streams.
struct Launches {
  std::uint64_t made = 0, done = 0;
  double clock = 0;
  sim::races::Clocks seen;
};

}  // namespace

struct CUgraphExec_st {
  std::vector<sim::Node> nodes;
  // By node; 0: that of the stream it is launched on, otherwise one more than it.
  std::vector<std::size_t> timelines;
  std::shared_ptr<Launches> launches = std::make_shared<Launches>();
};

namespace motley::sim {
namespace {

struct Graphs {
  std::vector<std::shared_ptr<Capture>> captures;  // that have not ended
  std::set<cudaGraph_t> graphs;
  std::set<cudaGraphExec_t> executables;
};

Graphs& all() {
  static auto* const one = new Graphs;
  return *one;
}

CUgraph_st& graph_of(const char* call, cudaGraph_t graph) {
  if (!all().graphs.contains(graph)) throw Violation(std::string(call) + ": the graph does not exist");
  return *graph;
}

CUgraphExec_st& executable_of(const char* call, cudaGraphExec_t executable) {
  if (!all().executables.contains(executable))
    throw Violation(std::string(call) + ": the executable graph does not exist");
  return *executable;
}

// Whether all nodes come before what would follow `ends`.
bool joined(const std::vector<Node>& nodes, const std::set<std::size_t>& ends) {
  std::vector<bool> reached(nodes.size(), false);
  for (const std::size_t end : ends) reached[end] = true;
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (!reached[i]) return false;
    for (const std::size_t before : nodes[i].after) reached[before] = true;
  }
  return true;
}

// A node goes on with the timeline of one that it follows, if no other does, so that the nodes of each have an order.
std::vector<std::size_t> timelines_of(const std::vector<Node>& nodes) {
  std::vector<std::size_t> timelines(nodes.size(), 0);
  std::vector<bool> ends(nodes.size(), false);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& after = nodes[i].after;
    const auto free =
        std::find_if(after.begin(), after.end(), [&](std::size_t before) { return ends[before]; });
    if (free != after.end()) {
      timelines[i] = timelines[*free];
      ends[*free] = false;
    } else if (i > 0) {
      timelines[i] = new_timeline() + 1;
    }
    ends[i] = true;
  }
  return timelines;
}

// An order of the nodes in which each follows those that come before it.
std::vector<std::size_t> draw_order(const std::vector<Node>& nodes) {
  std::mt19937_64 random(draw());
  std::vector<std::size_t> missing, ready, order;
  std::vector<std::vector<std::size_t>> followers(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    missing.push_back(nodes[i].after.size());
    if (missing[i] == 0) ready.push_back(i);
    for (const std::size_t before : nodes[i].after) followers[before].push_back(i);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const std::size_t node = ready.back();
    ready.pop_back();
    order.push_back(node);
    for (const std::size_t follower : followers[node])
      if (--missing[follower] == 0) ready.push_back(follower);
  }
  return order;
}

cudaError_t launch_graph(CUgraphExec_st& executable, Stream& stream) {
  const auto launches = executable.launches;
  const std::uint64_t number = ++launches->made;
  struct Run {
    races::Clocks begin;
    std::vector<races::Clocks> seen;  // by node
  };
  const auto run = std::make_shared<Run>();
  run->seen.resize(executable.nodes.size());
  put(stream, {"cudaGraphLaunch", [launches, number, run, &stream] {
                 if (launches->done + 1 < number) return false;
                 stream.clock = std::max(stream.clock, launches->clock);
                 races::join(stream.seen, launches->seen);
                 run->begin = stream.seen;
                 return true;
               }});
  for (const std::size_t i : draw_order(executable.nodes)) {
    Work work = executable.nodes[i].work;
    const std::size_t timeline = executable.timelines[i];
    work.timeline = [run, i, after = executable.nodes[i].after,
                     index = timeline == 0 ? stream.index : timeline - 1] {
      races::Clocks& seen = run->seen[i];
      seen = run->begin;
      for (const std::size_t before : after) races::join(seen, run->seen[before]);
      return Timeline{&seen, index};
    };
    put(stream, std::move(work));
  }
  return put(stream, {"cudaGraphLaunch", [launches, number, run, &stream] {
                        for (const races::Clocks& seen : run->seen) races::join(stream.seen, seen);
                        launches->done = number;
                        launches->clock = stream.clock;
                        launches->seen = stream.seen;
                        return true;
                      }});
}

}  // namespace

bool is_captured(cudaStream_t stream) {
  return stream_of(stream).capture != nullptr;
}

cudaError_t refuse_while_captured(cudaStream_t stream) {
  stream_of(stream).capture->failed = true;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t refuse_captured_event(const CUevent_st& event) {
  event.capture->failed = true;
  return cudaErrorCapturedEvent;
}

cudaError_t capture_work(Stream& stream, Work work) {
  Capture& capture = *stream.capture;
  if (capture.failed) return cudaErrorStreamCaptureInvalidated;
  std::set<std::size_t>& end = capture.ends[&stream];
  capture.nodes.push_back({std::move(work), end});
  end = {capture.nodes.size() - 1};
  return cudaSuccess;
}

cudaError_t capture_record(Stream& stream, CUevent_st& event) {
  if (stream.capture->failed) return cudaErrorStreamCaptureInvalidated;
  event.capture = stream.capture;
  event.nodes = stream.capture->ends[&stream];
  return cudaSuccess;
}

cudaError_t capture_wait(Stream& stream, const CUevent_st& event) {
  const auto fail = [](const std::shared_ptr<Capture>& capture) {
    if (capture) capture->failed = true;
  };
  if (stream.capture && stream.capture->failed) return cudaErrorStreamCaptureInvalidated;
  if (!event.capture) {
    if (event.recorded == 0) return cudaSuccess;
    fail(stream.capture);
    return cudaErrorStreamCaptureIsolation;
  }
  const auto& captures = all().captures;
  if (std::find(captures.begin(), captures.end(), event.capture) == captures.end()) {
    fail(stream.capture);
    return cudaErrorStreamCaptureIsolation;
  }
  if (stream.capture && stream.capture != event.capture) {
    fail(stream.capture);
    fail(event.capture);
    return cudaErrorStreamCaptureMerge;
  }
  stream.capture = event.capture;
  stream.capture->ends[&stream].insert(event.nodes.begin(), event.nodes.end());
  return cudaSuccess;
}

bool unsafe_while_captured() {
  bool unsafe = false;
  for (const auto& capture : all().captures) {
    const bool mine = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (mine && capture->mode == cudaStreamCaptureModeThreadLocal))
      capture->failed = unsafe = true;
  }
  return unsafe;
}

bool invalidate_captures() {
  bool any = false;
  for (const auto& capture : all().captures)
    if (capture->origin->device == current_device()) capture->failed = any = true;
  return any;
}

std::size_t live_graphs() {
  return all().graphs.size() + all().executables.size();
}

}  // namespace motley::sim

using sim::entry;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return entry("cudaStreamBeginCapture", [&] {
    if (handle == nullptr || handle == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    sim::Stream& stream = sim::stream_of(handle);
    if (stream.capture) return sim::refuse_while_captured(handle);
    auto capture = std::make_shared<sim::Capture>();
    capture->origin = &stream;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->ends[&stream] = {};
    stream.capture = capture;
    sim::all().captures.push_back(std::move(capture));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return entry("cudaStreamIsCapturing", [&] {
    const auto& capture = sim::stream_of(handle).capture;
    *status = !capture          ? cudaStreamCaptureStatusNone
              : capture->failed ? cudaStreamCaptureStatusInvalidated
                                : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  const auto end = [&](sim::Stream& stream) -> cudaError_t {
    const std::shared_ptr<sim::Capture> capture = stream.capture;
    if (!capture) return cudaErrorIllegalState;
    if (capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    for (const auto& [part, nodes] : capture->ends) part->capture = nullptr;
    auto& captures = sim::all().captures;
    captures.erase(std::find(captures.begin(), captures.end(), capture));
    if (capture->failed) return cudaErrorStreamCaptureInvalidated;
    if (!sim::joined(capture->nodes, capture->ends[&stream])) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{std::move(capture->nodes)};
    sim::all().graphs.insert(*graph);
    return cudaSuccess;
  };
  const cudaError_t error = entry("cudaStreamEndCapture", [&] { return end(sim::stream_of(handle)); });
  // A call that is made to fail has ended the capture, too.
  const std::lock_guard guard(sim::lock());
  if (sim::Stream& stream = sim::stream_of(handle); error != cudaSuccess && stream.capture) {
    stream.capture->failed = true;
    end(stream);
  }
  return error;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  return entry("cudaGraphGetNodes", [&] {
    if (nodes != nullptr) throw sim::Violation("cudaGraphGetNodes: only the number of nodes is simulated");
    *count = sim::graph_of("cudaGraphGetNodes", handle).nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t handle, unsigned long long flags) {
  return entry("cudaGraphInstantiate", [&] {
    if (flags != 0) throw sim::Violation("cudaGraphInstantiate: no flags are simulated");
    const CUgraph_st& graph = sim::graph_of("cudaGraphInstantiate", handle);
    *executable = new CUgraphExec_st{graph.nodes, sim::timelines_of(graph.nodes)};
    sim::all().executables.insert(*executable);
    return cudaSuccess;
  });
}

// Arguments of nodes may change, also which kernel it is and how large its grid; not what kind of node it is, nor the
// direction of a copy, nor what follows what.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t handle, cudaGraph_t other,
                                cudaGraphExecUpdateResultInfo* info) {
  return entry("cudaGraphExecUpdate", [&] {
    CUgraphExec_st& executable = sim::executable_of("cudaGraphExecUpdate", handle);
    const CUgraph_st& graph = sim::graph_of("cudaGraphExecUpdate", other);
    *info = {};
    const auto refuse = [&](cudaGraphExecUpdateResult why) {
      info->result = why;
      return cudaErrorGraphExecUpdateFailure;
    };
    if (graph.nodes.size() != executable.nodes.size()) return refuse(cudaGraphExecUpdateErrorTopologyChanged);
    const auto copies = [](sim::NodeKind kind) { return kind >= sim::NodeKind::copy_in; };
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      const sim::Node &mine = executable.nodes[i], &theirs = graph.nodes[i];
      if (mine.after != theirs.after) return refuse(cudaGraphExecUpdateErrorTopologyChanged);
      if (mine.work.kind == theirs.work.kind) continue;
      return refuse(copies(mine.work.kind) && copies(theirs.work.kind)
                        ? cudaGraphExecUpdateErrorParametersChanged
                        : cudaGraphExecUpdateErrorNodeTypeChanged);
    }
    executable.nodes = graph.nodes;
    info->result = cudaGraphExecUpdateSuccess;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t handle, cudaStream_t stream) {
  return entry("cudaGraphLaunch", [&] {
    if (sim::is_captured(stream))
      throw sim::Violation("cudaGraphLaunch: a graph within a graph is not simulated");
    return sim::launch_graph(sim::executable_of("cudaGraphLaunch", handle), sim::stream_of(stream));
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return entry("cudaGraphDestroy", [&] {
    delete &sim::graph_of("cudaGraphDestroy", graph);
    sim::all().graphs.erase(graph);
    return cudaSuccess;
  });
}

// What was launched before goes on.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return entry("cudaGraphExecDestroy", [&] {
    delete &sim::executable_of("cudaGraphExecDestroy", executable);
    sim::all().executables.erase(executable);
    return cudaSuccess;
  });
}

}  // extern "C"
