// HetSeq's MNIST network in float64 and plain loops, channels first: forward, loss and gradients of the
// summed loss, with the program's dropout. It shares nothing with the program but the counted random numbers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace motley::test {

struct ReferenceBatch {
  std::vector<std::uint8_t> pixels;  // n x 28 x 28
  std::vector<int> labels;           // n
  std::uint64_t seed = 0;
  std::uint32_t step = 0;
  std::uint32_t first_slot = 0;
  bool dropout = true;
};

struct ReferenceResult {
  double loss_sum = 0;
  std::vector<double> logits;                            // n x 10
  std::map<std::string, std::vector<double>> gradients;  // by parameter name
};

using ReferenceParameters = std::map<std::string, std::vector<double>>;

ReferenceResult reference_mnist(const ReferenceParameters& parameters, const ReferenceBatch& batch);

}  // namespace motley::test
