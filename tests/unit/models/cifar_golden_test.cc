// A training pass of every family against PyTorch in float64 (tests/golden/cifar.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden_network.h"

namespace motley::test {
namespace {

// Compares the tensors, in the order of their names, with their digests [tensors, 5]. A difference is measured by
// what it does to the projections, against the tensor's norm and a hundredth of the norm of all: biases before a
// batch norm have gradients of 0.
void expect_digests(const NamedTensors& tensors, const std::vector<float>& golden, const std::string& what) {
  ASSERT_EQ(golden.size(), tensors.size() * 5);
  double total = 0;
  for (std::size_t i = 0; i < golden.size(); i += 5) total += golden[i] * static_cast<double>(golden[i]);
  total = std::sqrt(total);
  double worst = 0;
  std::string worst_name;
  std::size_t at = 0;
  for (const auto& [name, values] : tensors) {
    const Digest ours = digest(name, values);
    const double distance =
        std::max(distance_of_projections(ours, &golden[at]), std::abs(ours.norm - golden[at]));
    const double relative = distance / (golden[at] + 1e-2 * total);
    if (!(relative <= worst)) {
      worst = relative;
      worst_name = name;
    }
    at += 5;
  }
  EXPECT_LT(worst, 1e-4) << what << " of " << worst_name;
  testing::Test::RecordProperty(what, std::to_string(worst));
}

class CifarGolden : public testing::TestWithParam<std::string> {};

TEST_P(CifarGolden, equals_pytorch_in_output_loss_and_all_gradients) {
  const GoldenPass golden = golden_of(GetParam());
  const std::unique_ptr<Backend> backend = make_cpu_backend(2);
  const NetworkPass pass = golden_pass(*backend, GetParam(), DType::f32);
  EXPECT_LT(relative_distance(pass.logits, golden.logits), 1e-4);
  EXPECT_NEAR(pass.loss, golden.loss, 1e-4 * golden.loss);
  ASSERT_FALSE(pass.finished.empty());
  EXPECT_TRUE(std::is_sorted(pass.finished.begin(), pass.finished.end(), std::less_equal<>()));
  EXPECT_EQ(pass.finished.back(), pass.arena_elements);
  expect_digests(pass.gradients, golden.gradients, "gradient");
  expect_digests(pass.statistics, golden.statistics, "statistic");
  EXPECT_LT(relative_distance(pass.evaluated, golden.evaluated), 1e-4);
}

std::string case_name(const testing::TestParamInfo<std::string>& network) {
  std::string name = network.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, CifarGolden, testing::ValuesIn(golden_networks()), case_name);

}  // namespace
}  // namespace motley::test
