#include "models/graph.h"

#include <utility>

namespace motley {

std::vector<Value> Graph::add(std::unique_ptr<Layer> layer, const std::vector<Value>& inputs) {
  MOTLEY_CHECK(!inputs.empty());
  GraphNode node;
  for (const Value input : inputs) {
    MOTLEY_CHECK(input.index < shapes_.size());
    node.inputs.push_back(input.index);
  }
  std::vector<Value> outputs;
  for (const Shape& shape : layer->output_shapes(node.input_shapes(shapes_))) {
    outputs.push_back({shapes_.size()});
    node.outputs.push_back(shapes_.size());
    shapes_.push_back(shape);
    producers_.push_back(nodes_.size());
  }
  node.layer = std::move(layer);
  nodes_.push_back(std::move(node));
  return outputs;
}

std::int64_t Graph::multiply_adds() const {
  std::int64_t sum = 0;
  for (const GraphNode& node : nodes_) sum += node.layer->multiply_adds(node.input_shapes(shapes_));
  return sum;
}

void Graph::reserve(Backend& backend, std::int64_t max_batch, bool training, DType compute) {
  release();
  Memory memory{max_batch, training, compute, make_schedule(nodes_, shapes_, compute, training), {}, {}};
  memory.layout = memory.schedule.plan.lay_out(max_batch);
  memory.buffer = Buffer(backend, memory.layout.bytes);
  memory_ = std::move(memory);
}

std::size_t Graph::memory_bytes(std::int64_t max_batch, bool training, DType compute) const {
  return make_schedule(nodes_, shapes_, compute, training).plan.lay_out(max_batch).bytes;
}

View Graph::view_of_tensor(int tensor, DType type, const Shape& shape) const {
  return memory_.buffer.view(type, shape, memory_.layout.offsets.at(static_cast<std::size_t>(tensor)));
}

View Graph::bytes_of(int tensor, const Extent& size, std::int64_t n) const {
  if (tensor == no_tensor) return {};
  return view_of_tensor(tensor, DType::u8, Shape{static_cast<std::int64_t>(size.bytes(n))});
}

View Graph::output_view(std::size_t value, std::int64_t n) const {
  const DType type = nodes_[producers_[value - 1]].layer->output_type(memory_.compute);
  return view_of_tensor(memory_.schedule.values[value], type, shapes_[value].with_batch(n));
}

ConstView Graph::value_view(std::size_t value, ConstView x) const {
  return value == 0 ? x : ConstView(output_view(value, x.shape[0]));
}

ForwardTensors Graph::forward_tensors(std::size_t node, ConstView x) const {
  const std::int64_t n = x.shape[0];
  const NodeTensors& planned = memory_.schedule.nodes[node];
  ForwardTensors tensors;
  for (const std::size_t input : nodes_[node].inputs) tensors.x.push_back(value_view(input, x));
  for (const std::size_t output : nodes_[node].outputs) tensors.y.push_back(output_view(output, n));
  tensors.saved = bytes_of(planned.saved, planned.memory.saved, n);
  tensors.work = bytes_of(planned.forward_work, planned.memory.forward_work, n);
  return tensors;
}

BackwardTensors Graph::backward_tensors(std::size_t index, ConstView x, ConstView dy) const {
  const std::int64_t n = x.shape[0];
  const GraphNode& node = nodes_[index];
  const NodeTensors& planned = memory_.schedule.nodes[index];
  BackwardTensors tensors;
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    const std::size_t input = node.inputs[k];
    tensors.x.push_back(node.layer->backward_reads_input(k) ? value_view(input, x) : ConstView{});
    const GradientTensors& dx = planned.dx[k];
    tensors.dx.push_back(dx.written == no_tensor
                             ? View{}
                             : view_of_tensor(dx.written, memory_.compute, shapes_[input].with_batch(n)));
    tensors.accumulate.push_back(dx.accumulate);
  }
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    const std::size_t output = node.outputs[k];
    tensors.y.push_back(node.layer->backward_reads_output() ? value_view(output, x) : ConstView{});
    tensors.dy.push_back(
        planned.dy[k] == callers_tensor
            ? dy
            : ConstView(view_of_tensor(planned.dy[k], memory_.compute, shapes_[output].with_batch(n))));
  }
  tensors.saved = bytes_of(planned.saved, planned.memory.saved, n);
  tensors.work = bytes_of(planned.backward_work, planned.memory.backward_work, n);
  return tensors;
}

void Graph::sum_gradients(const Pass& pass, std::size_t index, ConstView dy) const {
  const GraphNode& node = nodes_[index];
  for (std::size_t k = 0; k < node.inputs.size(); ++k) {
    const GradientTensors& dx = memory_.schedule.nodes[index].dx[k];
    if (dx.sum == no_tensor) continue;
    const Shape shape = shapes_[node.inputs[k]].with_batch(dy.shape[0]);
    const auto term = [&](int tensor) {
      return tensor == callers_tensor ? dy : ConstView(view_of_tensor(tensor, memory_.compute, shape));
    };
    pass.backend.add(term(dx.begun), term(dx.addend), Activation::none,
                     view_of_tensor(dx.sum, memory_.compute, shape));
  }
}

void Graph::check_pass(const Pass& pass, ConstView x) const {
  MOTLEY_CHECK(x.shape[0] >= (pass.training ? 0 : 1) && x.shape[0] <= memory_.max_batch);
  MOTLEY_CHECK(x.shape.without_batch() == input_shape() && x.dtype == memory_.compute);
  MOTLEY_CHECK(memory_.training || !pass.training);
}

View Graph::forward(const Pass& pass, ConstView x) {
  check_pass(pass, x);
  const std::int64_t n = x.shape[0];
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    Layer& layer = *nodes_[i].layer;
    if (n > 0 || layer.adds_up_over_ranks()) layer.forward(pass, forward_tensors(i, x));
  }
  return output_view(shapes_.size() - 1, n);
}

void Graph::backward(const Pass& pass, ConstView x, ConstView dy, const GradientsDone& done) {
  check_pass(pass, x);
  const std::int64_t n = x.shape[0];
  MOTLEY_CHECK(pass.training && dy.shape == output_shape().with_batch(n) && dy.dtype == memory_.compute);
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    Layer& layer = *nodes_[i].layer;
    if (n > 0 || layer.adds_up_over_ranks()) layer.backward(pass, backward_tensors(i, x, dy));
    if (n > 0) sum_gradients(pass, i, dy);
    if (const std::size_t finished = layer.gradients_finished(); finished > 0 && done) done(finished);
  }
}

}  // namespace motley
