// Stretches of a backend's stream as CUDA graphs (Backend::run_stretch).
//
// While a stretch is open, its operations are captured instead of run; when it ends, or something needs the stream
// outside of it, what was captured becomes a graph and is launched, and the stretch goes on in a further one. The
// executable graphs of a stretch are kept, piece by piece, and take the arguments of the next pass (counted random
// numbers, numbers of masked tokens) by cudaGraphExecUpdate. Where that is refused because the pieces differ in more, such
// as another algorithm of cuBLASLt with a kernel more, a new one is made; several that differ in their number of nodes are
// kept side by side.
//
// The first pass of a stretch is run as it is: then libraries choose algorithms, load kernels and take memory. Before the
// second it is rehearsed: captured and thrown away, so that what cannot be captured shows before anything was run.
//
// Captures are relaxed: what libraries allocate on the way is theirs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"

namespace motley::cuda {

class Graphs {
 public:
  // Of this stream, which outlives the object. Not `on`: stretches are run as they are.
  Graphs(cudaStream_t stream, bool on) : stream_(stream), on_(on) {}
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // Backend::run_stretch. Throws StretchLost when a capture failed after a part of the work had been launched; graphs are
  // then left out from there on, with a warning, as they are when a rehearsal fails.
  void run(const StretchKey& key, const std::function<void()>& work, const std::function<void()>& rehearsal);

  // What the caller puts on the stream next is part of the stretch, if one is open.
  void take_part() {
    if (open_) begin_capture();
  }
  // What the caller does next is none: all that belongs before it is put on the stream.
  void interrupt();
  // The same where nothing can be thrown: what goes wrong comes from the next call.
  void interrupt_quietly() noexcept;

  // Working memory was given back: stretches begin with a pass that is run as it is, again.
  void forget();

 private:
  struct DestroyGraph {
    void operator()(cudaGraph_t graph) const { MOTLEY_CUDA_GIVE_BACK(cudaGraphDestroy(graph)); }
  };
  struct DestroyExecutable {
    void operator()(cudaGraphExec_t executable) const {
      MOTLEY_CUDA_GIVE_BACK(cudaGraphExecDestroy(executable));
    }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
  using Executable = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyExecutable>;
  struct Variant {
    std::size_t nodes = 0;
    Executable executable;
  };
  struct Stretch {
    std::int64_t passes = 0;
    std::uint64_t used = 0;
    std::vector<std::vector<Variant>> pieces;
  };

  std::optional<std::string> capture(Stretch* stretch, const std::function<void()>& work);
  Stretch& find(const StretchKey& key);
  void begin_capture();
  void launch(Stretch& stretch, const Graph& graph, std::size_t nodes);
  bool update(const Variant& variant, const Graph& graph);
  Executable instantiate(const Graph& graph);
  void check(cudaError_t error, const char* call);
  bool was_invalidated();
  void abandon() noexcept;
  void leave_out(const std::string& why);

  cudaStream_t stream_;
  bool on_;
  bool open_ = false, capturing_ = false;
  bool lost_ = false;           // a call of CUDA's for captures and graphs was refused
  Stretch* stretch_ = nullptr;  // that is open; null: a rehearsal
  std::size_t piece_ = 0;       // of it, that comes next
  std::exception_ptr failure_;  // of interrupt_quietly()
  std::map<StretchKey, Stretch> stretches_;
  std::uint64_t uses_ = 0;
};

}  // namespace motley::cuda
