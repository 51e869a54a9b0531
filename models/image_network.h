// An image classifier: parameters and the chain of layers that uses them.
#pragma once

#include <cstdint>

#include "models/parameter_store.h"
#include "models/sequential.h"

namespace motley {

struct ImageNetwork {
  ImageNetwork(const Shape& input, std::int64_t classes_) : classes(classes_), body(input) {}

  std::int64_t classes;
  ParameterStore parameters;  // declared before the layers, which refer to it
  Sequential body;            // [height, width, channels] to logits [classes]
};

}  // namespace motley
