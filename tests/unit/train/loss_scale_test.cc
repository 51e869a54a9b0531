#include "train/loss_scale.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace motley::train {
namespace {

// torch.amp.GradScaler: init_scale 65536, growth_factor 2, backoff_factor 0.5, growth_interval 2000.
TEST(LossScale, halves_when_a_gradient_is_not_finite_and_doubles_after_2000_that_are) {
  LossScale scale(0);
  EXPECT_EQ(scale.factor(), 65536);
  EXPECT_TRUE(scale.note(false));
  EXPECT_TRUE(scale.note(false));
  EXPECT_EQ(scale.factor(), 16384);
  EXPECT_EQ(scale.skipped(), 2);
  for (int step = 0; step < 1999; ++step) EXPECT_TRUE(scale.note(true));
  EXPECT_EQ(scale.factor(), 16384);
  EXPECT_TRUE(scale.note(true));
  EXPECT_EQ(scale.factor(), 32768);
  for (int step = 0; step < 1999; ++step) scale.note(true);
  scale.note(false);
  for (int step = 0; step < 1999; ++step) scale.note(true);
  EXPECT_EQ(scale.factor(), 16384) << "steps in a row count, not steps";
}

TEST(LossScale, gives_up_when_even_the_unscaled_gradient_is_not_finite) {
  LossScale scale(0);
  for (int step = 0; step < 16; ++step) EXPECT_TRUE(scale.note(false));
  EXPECT_EQ(scale.factor(), 1);
  EXPECT_FALSE(scale.note(false));
}

TEST(LossScale, a_fixed_factor_stays) {
  LossScale scale(1024);
  EXPECT_FALSE(scale.moves());
  for (int step = 0; step < 5000; ++step) EXPECT_TRUE(scale.note(true));
  for (int step = 0; step < 50; ++step) EXPECT_TRUE(scale.note(false)) << "BadSteps says when it is enough";
  EXPECT_EQ(scale.factor(), 1024);
  EXPECT_EQ(scale.skipped(), 50);
}

TEST(LossScale, without_one_the_factor_is_1) {
  LossScale none;
  EXPECT_FALSE(none.active());
  EXPECT_EQ(none.factor(), 1);
  EXPECT_TRUE(none.note(false));
  EXPECT_EQ(none.skipped(), 0);
  EXPECT_TRUE(none.to_json().is_null());
}

TEST(LossScale, goes_on_where_it_was) {
  LossScale scale(0), other(0);
  scale.note(false);
  for (int step = 0; step < 1500; ++step) scale.note(true);
  other.restore(scale.to_json(), "here");
  for (LossScale* one : {&scale, &other})
    for (int step = 0; step < 500; ++step) one->note(true);
  EXPECT_EQ(other.factor(), 65536);
  EXPECT_EQ(other.to_json(), scale.to_json());
  EXPECT_THROW(other.restore({{"factor", -1}, {"finite_in_a_row", 0}, {"skipped", 0}}, "here"), Error);
  EXPECT_THROW(other.restore({{"factor", "x"}}, "here"), Error);
}

}  // namespace
}  // namespace motley::train
