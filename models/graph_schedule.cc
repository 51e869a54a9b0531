#include "models/graph_schedule.h"

#include <algorithm>
#include <map>
#include <utility>

namespace motley {
namespace {

// Steps: node i runs forward in step i and backward in step 2 * nodes - i; the loss lies between.
class Scheduler {
 public:
  Scheduler(const std::vector<GraphNode>& nodes, const std::vector<Shape>& shapes, DType compute)
      : nodes_(nodes), shapes_(shapes), compute_(compute) {
    schedule_.values.assign(shapes.size(), no_tensor);
    schedule_.values.front() = callers_tensor;
    schedule_.nodes.resize(nodes.size());
  }

  GraphSchedule run(bool training) {
    keep_for_backward_ = training;
    for (std::size_t i = 0; i < nodes_.size(); ++i) forward(i);
    use(schedule_.values.back(), static_cast<int>(nodes_.size()));
    if (training) {
      gradients_.assign(shapes_.size(), no_tensor);
      gradients_.back() = callers_tensor;
      for (std::size_t i = nodes_.size(); i-- > 0;) backward(i);
    }
    schedule_.plan.join();
    return std::move(schedule_);
  }

 private:
  int forward_step(std::size_t node) const { return static_cast<int>(node); }
  int backward_step(std::size_t node) const {
    return static_cast<int>(2 * nodes_.size()) - static_cast<int>(node);
  }

  void use(int tensor, int step) {
    if (tensor >= 0) schedule_.plan.use(tensor, step);
  }

  Extent extent(std::size_t value, DType type) const {
    return {static_cast<std::size_t>(shapes_[value].elements()) * size_of(type), 0};
  }

  int add_memory(const Extent& size, int step, std::vector<int> places = {}) {
    if (size.per_sample == 0 && size.fixed == 0) return no_tensor;
    return schedule_.plan.add(size, step, std::move(places));
  }

  // Of (tensor, whether it may be written over): those tensors that may in every role they have.
  static std::vector<int> places_of(const std::vector<std::pair<int, bool>>& roles) {
    std::map<int, bool> allowed;
    for (const auto& [tensor, may] : roles) {
      const auto found = allowed.emplace(tensor, may).first;
      found->second = found->second && may;
    }
    std::vector<int> places;
    for (const auto& [tensor, may] : roles) {
      if (tensor >= 0 && allowed.at(tensor)) places.push_back(tensor);
    }
    return places;
  }

  void forward(std::size_t index) {
    const GraphNode& node = nodes_[index];
    NodeTensors& tensors = schedule_.nodes[index];
    const int step = forward_step(index);
    const Layer::Memory& memory = tensors.memory = node.layer->memory(node.input_shapes(shapes_), compute_);
    std::vector<std::pair<int, bool>> roles;
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      const int input = schedule_.values[node.inputs[k]];
      use(input, step);
      roles.emplace_back(input, node.layer->output_over_input(k));
    }
    tensors.saved = add_memory(memory.saved, step);
    tensors.forward_work = add_memory(memory.forward_work, step);
    for (std::size_t k = 0; k < node.outputs.size(); ++k) {
      schedule_.values[node.outputs[k]] =
          schedule_.plan.add(extent(node.outputs[k], node.layer->output_type(compute_)), step,
                             k == 0 ? places_of(roles) : std::vector<int>{});
    }
    if (!keep_for_backward_) return;
    const int back = backward_step(index);
    use(tensors.saved, back);
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.layer->backward_reads_input(k)) use(schedule_.values[node.inputs[k]], back);
    }
    if (node.layer->backward_reads_output()) {
      for (const std::size_t output : node.outputs) use(schedule_.values[output], back);
    }
  }

  // The tensors that backward() reads, and whether `places` allows to write over them.
  std::vector<std::pair<int, bool>> backward_roles(std::size_t index,
                                                   const std::vector<Place>& places) const {
    const GraphNode& node = nodes_[index];
    const NodeTensors& tensors = schedule_.nodes[index];
    const auto allows = [&](Place::Of of, std::size_t k) {
      return std::any_of(places.begin(), places.end(),
                         [&](const Place& place) { return place.of == of && place.index == k; });
    };
    std::vector<std::pair<int, bool>> roles;
    // A gradient that is passed on to a sum is read once more after backward().
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.layer->passes_gradient(k) && gradients_[node.inputs[k]] != no_tensor)
        roles.emplace_back(tensors.dy.front(), false);
    }
    for (std::size_t k = 0; k < tensors.dy.size(); ++k)
      roles.emplace_back(tensors.dy[k], allows(Place::Of::output_gradient, k));
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.layer->backward_reads_input(k))
        roles.emplace_back(schedule_.values[node.inputs[k]], allows(Place::Of::input, k));
    }
    for (std::size_t k = 0; node.layer->backward_reads_output() && k < node.outputs.size(); ++k)
      roles.emplace_back(schedule_.values[node.outputs[k]], allows(Place::Of::output, k));
    return roles;
  }

  void backward(std::size_t index) {
    const GraphNode& node = nodes_[index];
    NodeTensors& tensors = schedule_.nodes[index];
    const int step = backward_step(index);
    for (const std::size_t output : node.outputs) {
      MOTLEY_CHECK(gradients_[output] != no_tensor);
      tensors.dy.push_back(gradients_[output]);
      use(tensors.dy.back(), step);
    }
    const std::vector<Place> over_dy = tensors.memory.work_over_dy
                                           ? std::vector<Place>{{Place::Of::output_gradient, 0}}
                                           : std::vector<Place>{};
    tensors.backward_work =
        add_memory(tensors.memory.backward_work, step, places_of(backward_roles(index, over_dy)));
    for (std::size_t k = 0; k < node.inputs.size(); ++k) tensors.dx.push_back(input_gradient(index, k));
    for (const std::size_t output : node.outputs) gradients_[output] = no_tensor;
  }

  // Sums are formed after the layer has run, which therefore cannot add to them, nor to a term of them.
  bool is_of_sum(std::size_t index, int tensor) const {
    const std::vector<GradientTensors>& dx = schedule_.nodes[index].dx;
    return std::any_of(dx.begin(), dx.end(), [&](const GradientTensors& other) {
      return other.sum != no_tensor && (other.sum == tensor || other.begun == tensor);
    });
  }

  GradientTensors input_gradient(std::size_t index, std::size_t k) {
    const GraphNode& node = nodes_[index];
    const std::size_t value = node.inputs[k];
    GradientTensors result;
    if (value == 0) return result;
    const int step = backward_step(index);
    int& gradient = gradients_[value];
    const int begun = gradient;
    // Passing a gradient on makes it that of several values.
    const bool begun_is_own = std::count(gradients_.begin(), gradients_.end(), begun) == 1;
    bool addend_is_free = true;
    if (node.layer->passes_gradient(k)) {
      result.addend = schedule_.nodes[index].dy.front();
      gradient = result.addend;
      // Sums are formed in the order of the inputs.
      for (std::size_t later = k + 1; later < node.inputs.size(); ++later)
        addend_is_free = addend_is_free && !node.layer->passes_gradient(later);
    } else if (begun >= 0 && begun_is_own && node.layer->can_accumulate(k) && !is_of_sum(index, begun)) {
      use(begun, step);
      result.written = begun;
      result.accumulate = true;
      return result;
    } else {
      result.written = result.addend = gradient = schedule_.plan.add(
          extent(value, compute_), step, places_of(backward_roles(index, node.layer->gradient_places(k))));
    }
    if (begun == no_tensor) {
      result.addend = no_tensor;
      return result;
    }
    result.begun = begun;
    use(begun, step);
    use(result.addend, step);
    result.sum = gradient = schedule_.plan.add(
        extent(value, compute_), step, places_of({{begun, begun_is_own}, {result.addend, addend_is_free}}));
    return result;
  }

  const std::vector<GraphNode>& nodes_;
  const std::vector<Shape>& shapes_;
  DType compute_;
  bool keep_for_backward_ = false;
  GraphSchedule schedule_;
  std::vector<int> gradients_;  // of each value, as far as the backward pass has come
};

}  // namespace

std::vector<Shape> GraphNode::input_shapes(const std::vector<Shape>& shapes) const {
  std::vector<Shape> result;
  for (const std::size_t input : inputs) result.push_back(shapes[input]);
  return result;
}

GraphSchedule make_schedule(const std::vector<GraphNode>& nodes, const std::vector<Shape>& shapes,
                            DType compute, bool training) {
  return Scheduler(nodes, shapes, compute).run(training);
}

}  // namespace motley
