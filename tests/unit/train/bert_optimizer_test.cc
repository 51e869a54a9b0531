// Ten steps of the optimizers that BERT is trained with, against PyTorch (tests/golden/bert.py).
#include <gtest/gtest.h>

#include "support/bert_golden.h"
#include "train/optimizer.h"

namespace motley::train {
namespace {

class BertOptimizer : public testing::TestWithParam<const char*> {};

TEST_P(BertOptimizer, ten_steps_agree_with_pytorch) {
  const test::Golden golden("bert.safetensors");
  test::GoldenBert network(golden, test::golden_bert_config());
  OptimizerOptions options;
  options.name = std::string(GetParam()).substr(0, std::string(GetParam()).find('_'));
  options.adam_eps = options.name == "adam" ? 1e-4 : 1e-6;
  options.weight_decay = std::string(GetParam()).ends_with("without_decay") ? 0 : 0.01;
  ParameterStore& store = network.bert->parameters;
  const std::unique_ptr<Optimizer> optimizer = make_optimizer(options, *network.backend, store);
  const float one = 1;
  for (std::int64_t step = 1; step <= 10; ++step) {
    network.train({3}, static_cast<std::uint32_t>(step));
    optimizer->step(1e-3, step, view_of(&one, Shape{1}));
  }
  for (std::size_t i = 0; i < store.all().size(); ++i) {
    const std::string& name = store.all()[i].name;
    const auto expected = golden[std::string(GetParam()) + "/" + name].values<float>();
    const auto start = golden["start/" + name].values<float>();
    // The loss does not depend on a key's bias, since softmax does not: its gradient is rounding alone, which Adam
    // scales up to steps of any size below the rate. PyTorch in float32 differs from float64 there just as much.
    const double tolerance = name.ends_with("key.bias") ? 1e-3 : 1e-5;
    EXPECT_LT(test::distance(network.value(i), expected), tolerance * test::norm(expected)) << name;
    // The steps are so much larger than that, that a test without them fails.
    if (name.ends_with("key.bias")) continue;
    EXPECT_GT(test::distance(start, expected), 1e-4 * test::norm(expected)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, BertOptimizer, testing::Values("adamw", "lamb", "adam", "lamb_without_decay"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(DecaySegments, join_neighbours_and_leave_out_biases_and_norms) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(1);
  ParameterStore store;
  store.add("a.weight", Shape{3, 3}, Initializer::zeros());
  store.add("a.bias", Shape{3}, Initializer::zeros(), false);
  store.add("b.weight", Shape{2, 2}, Initializer::zeros());
  store.add("c.weight", Shape{20}, Initializer::zeros());
  store.allocate(*backend, false);
  // In the arena: c [0, 20) and padding to 32, b [32, 36) to 48, the bias [48, 51) to 64, a [64, 73).
  const std::vector<Segment> joined = decay_segments(store, 0.5, false);
  ASSERT_EQ(joined.size(), 3U);
  EXPECT_EQ(joined[0].offset, 0U);
  EXPECT_EQ(joined[0].elements, 36U);
  EXPECT_EQ(joined[0].weight_decay, 0.5);
  EXPECT_EQ(joined[1].offset, 48U);
  EXPECT_EQ(joined[1].elements, 3U);
  EXPECT_EQ(joined[1].weight_decay, 0);
  EXPECT_EQ(joined[2].offset, 64U);
  EXPECT_EQ(joined[2].elements, 9U);
  EXPECT_EQ(decay_segments(store, 0.5, true).size(), 4U);
}

}  // namespace
}  // namespace motley::train
