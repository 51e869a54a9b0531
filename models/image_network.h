// An image classifier: parameters and the graph of layers that uses them.
#pragma once

#include <cstdint>

#include "models/graph.h"
#include "models/parameter_store.h"

namespace motley {

struct ImageNetwork {
  ImageNetwork(const Shape& input, std::int64_t classes_) : classes(classes_), body(input) {}

  std::int64_t classes;
  ParameterStore parameters;  // declared before the layers, which refer to it
  Graph body;                 // [height, width, channels] to logits [classes], which are float32
};

}  // namespace motley
