#include "train/bad_steps.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace motley::train {
namespace {

TEST(BadSteps, so_many_in_a_row_are_too_many) {
  BadSteps steps(3);
  EXPECT_TRUE(steps.note(false));
  EXPECT_TRUE(steps.note(false));
  EXPECT_TRUE(steps.note(true));
  EXPECT_EQ(steps.in_a_row(), 0);
  EXPECT_TRUE(steps.note(false));
  EXPECT_TRUE(steps.note(false));
  EXPECT_EQ(steps.in_a_row(), 2);
  EXPECT_FALSE(steps.note(false));
  EXPECT_EQ(steps.skipped(), 5);
  BadSteps strict(1);
  EXPECT_FALSE(strict.note(false));
}

TEST(BadSteps, goes_on_where_it_was) {
  BadSteps steps(3), other(3);
  steps.note(false);
  steps.note(true);
  steps.note(false);
  steps.note(false);
  other.restore(steps.to_json(), "here");
  EXPECT_EQ(other.skipped(), 3);
  EXPECT_FALSE(other.note(false)) << "two of the three were before";
  BadSteps fresh(3);
  fresh.restore(Json(), "here");
  EXPECT_EQ(fresh.skipped(), 0);
  EXPECT_THROW(fresh.restore({{"in_a_row", 2}, {"skipped", 1}}, "here"), Error);
  EXPECT_THROW(fresh.restore({{"in_a_row", -1}, {"skipped", 1}}, "here"), Error);
  EXPECT_THROW(fresh.restore({{"skipped", 1}}, "here"), Error);
}

TEST(BadSteps, the_ranks_at_fault_are_named_with_their_samples) {
  EXPECT_EQ(suspects_text({{4, 1, true, {1, 2}},
                           {4, 1, false, {7}},
                           {4, 1, false, {10, 11, 12, 13, 14, 15, 16, 17, 18, 19}}}),
            "rank 1: sample 7; rank 2: samples 10, 11, 12, 13, 14, 15, 16, 17 and 2 more");
  EXPECT_EQ(suspects_text({{4, 1, true, {1, 2}}, {4, 1, true, {}}, {4, 1, true, {9}}}),
            "rank 0: samples 1, 2; rank 2: sample 9")
      << "a gradient alone says nothing of the rank";
}

TEST(BadSteps, a_line_is_json) {
  const Json line = Json::parse(to_json_line({{4, 2, true, {1}}, {4, 2, false, {}}}, std::nan(""), 1.5));
  EXPECT_EQ(line, Json::parse(R"({"step": 4, "epoch": 2, "loss": null, "grad_norm": 1.5, "ranks": [
    {"rank": 0, "finite": true, "samples": [1]}, {"rank": 1, "finite": false, "samples": []}]})"));
}

}  // namespace
}  // namespace motley::train
