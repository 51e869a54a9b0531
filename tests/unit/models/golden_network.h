// A training pass of a network of tests/golden/cifar.py, on any device and in any type.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace motley::test {

// Tensors by the names of their parameters.
using NamedTensors = std::map<std::string, std::vector<float>>;

struct NetworkPass {
  std::vector<float> logits, evaluated;  // in training, and in evaluation after it
  double loss = 0;                       // summed over the batch
  NamedTensors gradients, statistics;
  std::vector<std::size_t> finished;  // elements of the gradient arena, as the backward pass told them
  std::size_t arena_elements = 0;
};

// The pass that the golden file has of `name`, computed in `type`, on parameters and pixels that are rounded to `rounded`.
NetworkPass golden_pass(Backend& backend, const std::string& name, DType type, DType rounded = DType::f32);

// What the golden file has.
struct GoldenPass {
  std::vector<float> logits, evaluated;
  double loss = 0;
  std::vector<float> gradients, statistics;  // digests [tensors, 5], in the order of the names
};
GoldenPass golden_of(const std::string& name);
const std::vector<std::string>& golden_networks();

// Norm and four projections on signs.
struct Digest {
  double norm = 0;
  double projections[4] = {};
};
Digest digest(const std::string& name, const std::vector<float>& values);
// What the projections of one tensor of a golden file say of its distance to `ours`.
double distance_of_projections(const Digest& ours, const float* golden);

double relative_distance(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace motley::test
