// The tensors of a pass through a graph: which one each node reads and writes, and when. From it follows what memory
// the pass takes.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "models/layer.h"
#include "models/memory_plan.h"

namespace motley {

struct GraphNode {
  std::unique_ptr<Layer> layer;
  std::vector<std::size_t> inputs, outputs;  // values
  std::vector<Shape> input_shapes(const std::vector<Shape>& shapes) const;
};

// Indices of tensors in the plan, or one of these.
constexpr int no_tensor = -1;
constexpr int callers_tensor = -2;  // the network's input, or the gradient of its output

// Where the gradient of one input of a node goes.
struct GradientTensors {
  int written = no_tensor;  // by the layer
  bool accumulate = false;  // the layer adds to `written`, which other readers of the value have begun
  // Otherwise, when others have begun it: sum = begun + addend, which is `written` or what the layer passes on.
  int begun = no_tensor, addend = no_tensor, sum = no_tensor;
};

struct NodeTensors {
  Layer::Memory memory;
  int saved = no_tensor, forward_work = no_tensor, backward_work = no_tensor;
  std::vector<int> dy;              // of each output
  std::vector<GradientTensors> dx;  // of each input
};

struct GraphSchedule {
  std::vector<int> values;  // the tensor of each value
  std::vector<NodeTensors> nodes;
  MemoryPlan plan;
};

// values: the shapes of all values, of which the first is the network's input and the last its output. A pass for
// evaluation is forward only and keeps nothing.
GraphSchedule make_schedule(const std::vector<GraphNode>& nodes, const std::vector<Shape>& shapes,
                            DType compute, bool training);

}  // namespace motley
