// A training pass of every family in bfloat16 and float16 against PyTorch in float64 (tests/golden/cifar.py), on the
// devices that the program has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_network.h"
#include "half_networks.h"

namespace motley::test {
namespace {

// Of all tensors together, over the norm of the golden ones.
double relative_distance(const NamedTensors& tensors, const std::vector<float>& golden) {
  EXPECT_EQ(golden.size(), tensors.size() * 5);
  double squares = 0, total = 0;
  std::size_t at = 0;
  for (const auto& [name, values] : tensors) {
    squares += std::pow(distance_of_projections(digest(name, values), &golden[at]), 2);
    total += std::pow(static_cast<double>(golden[at]), 2);
    at += 5;
  }
  return std::sqrt(squares / total);
}

struct Distance {
  const char* what;
  double value;
};

std::vector<Distance> distances(const NetworkPass& pass, const GoldenPass& golden) {
  return {{"logits", test::relative_distance(pass.logits, golden.logits)},
          {"evaluated", test::relative_distance(pass.evaluated, golden.evaluated)},
          {"loss", std::abs(pass.loss / golden.loss - 1)},
          {"gradient", relative_distance(pass.gradients, golden.gradients)},
          {"statistics", relative_distance(pass.statistics, golden.statistics)}};
}

class HalfNetworks : public testing::TestWithParam<HalfCase> {};

// What rounding does to a network differs from one to the next by orders of magnitude (maxima that change places): how far
// float32 comes to lie when only the parameters and the pixels are rounded is its measure.
TEST_P(HalfNetworks, are_as_near_to_pytorch_as_their_rounding_lets_them) {
  const auto& [name, type] = GetParam();
  const GoldenPass golden = golden_of(name);
  const std::vector<Distance> ours = distances(golden_pass(*make_backend(), name, type), golden),
                              rounded = distances(golden_pass(*make_cpu_backend(2), name, DType::f32, type),
                                                  golden);
  const double unit = type == DType::bf16 ? 0x1p-9 : 0x1p-12;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double allowed = std::min(16 * rounded[i].value + 8 * unit, 0.9);  // 1.4: nothing in common
    EXPECT_LT(ours[i].value, allowed) << ours[i].what;
    testing::Test::RecordProperty(ours[i].what, std::to_string(ours[i].value));
  }
  EXPECT_GT(ours[0].value, unit / 16) << "it was float32";
}

std::string case_name(const testing::TestParamInfo<HalfCase>& tested) {
  std::string name = tested.param.network + (tested.param.type == DType::bf16 ? "_bf16" : "_fp16");
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, HalfNetworks, testing::ValuesIn(half_cases()), case_name);

}  // namespace
}  // namespace motley::test
