#include "comm/roll.h"

#include <gtest/gtest.h>

namespace motley::comm {
namespace {

RankState computing(std::int64_t step, std::uint64_t progress, double for_s = 0.5) {
  return {step, progress, false, for_s, "computing"};
}
RankState waiting(std::int64_t step, std::uint64_t progress, double for_s = 0.5) {
  return {step, progress, true, for_s, "the gradients of the others"};
}

class RollTest : public ::testing::Test {
 protected:
  Roll roll_{{"rank 0 (host a, X)", "rank 1 (host b, Y)", "rank 2 (host c, Z)"}, 100};
};

TEST_F(RollTest, moves_when_anything_was_achieved_anywhere) {
  EXPECT_EQ(roll_.stalled_s(103), 3);
  roll_.heard(2, computing(1, 1), 104);
  EXPECT_EQ(roll_.stalled_s(104), 0);
  const std::uint64_t movement = roll_.movement();
  roll_.heard(2, computing(1, 1, 5), 109);
  roll_.heard(1, computing(1, 0, 5), 109);
  EXPECT_EQ(roll_.stalled_s(110), 6) << "to be heard of is not to move";
  EXPECT_EQ(roll_.movement(), movement);
  roll_.heard(1, waiting(1, 1), 111);
  EXPECT_EQ(roll_.stalled_s(111), 0);
  EXPECT_NE(roll_.movement(), movement);
}

TEST_F(RollTest, a_rank_that_is_silent_is_named_with_what_it_last_did) {
  roll_.heard(0, waiting(12, 50), 110);
  roll_.heard(1, waiting(12, 50), 110);
  roll_.heard(2, computing(12, 50, 0.25), 110);
  roll_.heard(0, waiting(12, 50, 3.5), 113);
  roll_.heard(1, waiting(12, 50, 3.5), 113);
  EXPECT_EQ(roll_.verdict(113.5, 1),
            "nothing has moved for 3.5 s: rank 2 (host c, Z) has not been heard of for 3.5 s and was last "
            "seen computing in "
            "step 12, for 3.8 s");
}

TEST_F(RollTest, a_rank_that_is_heard_of_and_does_not_wait_keeps_the_others_waiting) {
  for (const double now : {110.0, 114.0}) {
    roll_.heard(0, waiting(7, 9, now - 110), now);
    roll_.heard(1, {7, 9, false, now - 109.5, "reading the training data"}, now);
    roll_.heard(2, waiting(7, 9, now - 110), now);
  }
  EXPECT_EQ(roll_.verdict(114, 1),
            "nothing has moved for 4.0 s: rank 1 (host b, Y) was last seen reading the training data in step "
            "7, for 4.5 s");
}

TEST_F(RollTest, when_all_wait_all_are_named) {
  for (int rank = 0; rank < 3; ++rank) roll_.heard(rank, waiting(7, 9), 110);
  for (int rank = 0; rank < 3; ++rank) roll_.heard(rank, waiting(7, 9, 5), 115);
  const std::string verdict = roll_.verdict(115, 1);
  EXPECT_NE(verdict.find("rank 0 (host a, X) was last seen waiting for the gradients of the others in step "
                         "7, for 5.0 s; rank 1"),
            std::string::npos)
      << verdict;
  EXPECT_NE(verdict.find("; rank 2"), std::string::npos) << verdict;
}

TEST(Roll, names_no_more_than_a_screen_holds) {
  std::vector<std::string> names;
  for (int rank = 0; rank < 100; ++rank) names.push_back("rank " + std::to_string(rank));
  const Roll roll(names, 0);
  const std::string verdict = roll.verdict(10, 1);
  EXPECT_NE(verdict.find("rank 7 "), std::string::npos);
  EXPECT_EQ(verdict.find("rank 8 "), std::string::npos);
  EXPECT_NE(verdict.find("; and 92 more"), std::string::npos) << verdict;
}

}  // namespace
}  // namespace motley::comm
