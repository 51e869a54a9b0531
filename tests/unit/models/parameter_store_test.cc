#include "models/parameter_store.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace motley {
namespace {

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  ParameterStore store;
  int first = store.add("first", Shape{3, 5}, Initializer::uniform(0.5f));
  int second = store.add("second", Shape{7}, Initializer::ones());
  int third = store.add("third", Shape{33}, Initializer::zeros());
};

TEST(ParameterStore, lays_out_the_arena_in_the_order_of_the_backward_pass) {
  Fixture f;
  f.store.allocate(*f.backend, true);
  EXPECT_EQ(f.store[f.third].offset, 0u);
  EXPECT_EQ(f.store[f.second].offset, 48u);
  EXPECT_EQ(f.store[f.first].offset, 64u);
  EXPECT_EQ(f.store.arena_elements(), 80u);
  EXPECT_EQ(f.store.finished_through(f.third), 48u);
  EXPECT_EQ(f.store.finished_through(f.first), f.store.arena_elements());
  EXPECT_EQ(f.store.count(), 15 + 7 + 33);
}

TEST(ParameterStore, initialises_by_seed_alone_and_leaves_the_padding_zero) {
  Fixture a, b;
  a.store.allocate(*a.backend, true);
  b.store.allocate(*b.backend, false);
  a.store.initialize(1);
  b.store.initialize(1);
  const float* values = a.store.values().as<float>();
  EXPECT_EQ(0, std::memcmp(values, b.store.values().data, a.store.values().bytes()));
  b.store.initialize(2);
  EXPECT_NE(0, std::memcmp(values, b.store.values().data, a.store.values().bytes()));
  for (std::size_t i = 0; i < 33; ++i) EXPECT_EQ(values[i], 0.0f);
  for (std::size_t i = 33; i < 48; ++i) EXPECT_EQ(values[i], 0.0f) << "padding";
  for (std::size_t i = 48; i < 55; ++i) EXPECT_EQ(values[i], 1.0f);
  double largest = 0;
  for (std::size_t i = 64; i < 79; ++i) largest = std::max(largest, std::abs(static_cast<double>(values[i])));
  EXPECT_LE(largest, 0.5);
  EXPECT_GT(largest, 0.2) << "15 draws that all lie within 0.2 have probability 1e-6";
  EXPECT_EQ(values[79], 0.0f) << "padding";
}

TEST(ParameterStore, statistics_are_stored_behind_the_parameters_and_have_no_gradient) {
  Fixture f;
  const int mean = f.store.add_statistic("mean", Shape{5}, Initializer::zeros());
  const int variance = f.store.add_statistic("variance", Shape{18}, Initializer::ones());
  f.store.allocate(*f.backend, true);
  f.store.initialize(1);
  EXPECT_EQ(f.store.arena_elements(), 80u);
  EXPECT_EQ(f.store.gradients().elements(), 80);
  EXPECT_EQ(f.store.stored_elements(), 80u + 16u + 32u);
  EXPECT_EQ(f.store.count(), 15 + 7 + 33) << "they are not parameters";
  const float* stored = f.store.stored().as<float>();
  EXPECT_EQ(stored, f.store.values().as<float>());
  EXPECT_EQ(f.store.statistics().as<float>(), stored + 80);
  EXPECT_EQ(f.store.statistic(mean).as<float>(), stored + f.store.all_statistics()[0].offset);
  EXPECT_EQ(f.store.statistic(variance).as<float>(), stored + f.store.all_statistics()[1].offset);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(stored[80 + i], 0.0f);
  for (std::size_t i = 0; i < 18; ++i) EXPECT_EQ(stored[96 + i], 1.0f);
}

}  // namespace
}  // namespace motley
