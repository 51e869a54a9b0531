#include "train/drift.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace motley::train {
namespace {

using Ranks = std::vector<int>;

std::vector<float> some_parameters() {
  std::mt19937 generator(5);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> parameters(5000);
  for (float& parameter : parameters) parameter = normal(generator);
  return parameters;
}

Fingerprint with(std::size_t element, float value) {
  std::vector<float> parameters = some_parameters();
  parameters[element] = value;
  return fingerprint(parameters);
}

// As devices that round differently leave them after very many steps.
Fingerprint rounded() {
  std::vector<float> parameters = some_parameters();
  std::mt19937 generator(6);
  std::uniform_real_distribution<float> factor(0.9999F, 1.0001F);
  for (float& parameter : parameters) parameter *= factor(generator);
  return fingerprint(parameters);
}

const Fingerprint good = fingerprint(some_parameters());

TEST(Drift, the_one_with_other_bits_is_the_odd_one) {
  const Fingerprint bad = with(4321, std::nextafter(some_parameters()[4321], 1.0F));
  EXPECT_EQ(odd_ones_out(std::vector{good, good, good}, Ranks{0, 0, 0}), Ranks{});
  EXPECT_EQ(odd_ones_out(std::vector{good, bad, good}, Ranks{0, 0, 0}), Ranks{1});
  EXPECT_EQ(odd_ones_out(std::vector{bad, good, good, with(0, 1)}, Ranks{0, 0, 0, 0}), (Ranks{0, 3}));
  EXPECT_EQ(odd_ones_out(std::vector{bad, good}, Ranks{0, 0}), (Ranks{0, 1})) << "which one nobody knows";
  EXPECT_EQ(odd_ones_out(std::vector{bad, good, bad, good}, Ranks{0, 0, 0, 0}), (Ranks{0, 1, 2, 3}));
}

TEST(Drift, devices_of_several_kinds_may_round_differently) {
  EXPECT_EQ(odd_ones_out(std::vector{good, good, rounded(), rounded()}, Ranks{0, 0, 1, 1}), Ranks{});
  EXPECT_EQ(odd_ones_out(std::vector{good, rounded(), good}, Ranks{0, 0, 0}), Ranks{1})
      << "but not those of one";
}

TEST(Drift, a_kind_that_is_far_from_the_others_is_odd) {
  const float broken[] = {3.0F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()};
  for (const float value : broken) {
    EXPECT_EQ(odd_ones_out(std::vector{good, good, with(77, value)}, Ranks{0, 0, 1}), Ranks{2}) << value;
    EXPECT_EQ(odd_ones_out(std::vector{with(77, value), good, good}, Ranks{0, 1, 1}), Ranks{0}) << value;
    EXPECT_EQ(
        odd_ones_out(std::vector{good, good, rounded(), rounded(), with(77, value)}, Ranks{0, 0, 1, 1, 1}),
        Ranks{4})
        << value;
  }
}

TEST(Drift, fewer_parameters_than_blocks_and_zeros_are_compared_too) {
  const std::vector<float> zeros(3, 0.0F), ones(3, 1.0F);
  EXPECT_EQ(odd_ones_out(std::vector{fingerprint(zeros), fingerprint(zeros)}, Ranks{0, 1}), Ranks{});
  EXPECT_EQ(
      odd_ones_out(std::vector{fingerprint(zeros), fingerprint(zeros), fingerprint(ones)}, Ranks{0, 0, 1}),
      Ranks{2});
}

}  // namespace
}  // namespace motley::train
