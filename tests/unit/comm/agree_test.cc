#include "comm/agree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <stdexcept>

namespace motley::comm {
namespace {

class AgreeTest : public ::testing::Test {
 protected:
  // The code and sentence that this rank ends with.
  std::pair<int, std::string> outcome(const std::function<void()>& work, bool on_root = false) {
    try {
      on_root ? agree_on_root(world, "a test", work) : agree(world, "a test", work);
    } catch (const AgreedError& error) {
      return {static_cast<int>(error.code()), error.what()};
    }
    return {0, ""};
  }

  std::string on_rank(int rank) { return fmt::format("on rank {} (host {}): ", rank, world.host()); }

  const Communicator world{MPI_COMM_WORLD, 60};
  const int last = world.size() - 1;
};

using Outcome = std::pair<int, std::string>;

TEST_F(AgreeTest, nothing_is_thrown_when_nobody_failed) {
  int calls = 0;
  EXPECT_EQ(outcome([&] { ++calls; }), (Outcome{0, ""}));
  EXPECT_EQ(calls, 1);
}

TEST_F(AgreeTest, one_failing_rank_fails_all_with_its_sentence) {
  for (int failing = 0; failing < world.size(); ++failing) {
    const Outcome expected{3, (world.size() > 1 ? on_rank(failing) : "") + "a.h5 ends early"};
    EXPECT_EQ(outcome([&] {
                if (world.rank() == failing) fail(ExitCode::input, "a.h5 ends early");
              }),
              expected);
  }
}

TEST_F(AgreeTest, the_same_sentence_everywhere_is_said_without_a_rank) {
  EXPECT_EQ(outcome([] { fail(ExitCode::checkpoint, "no checkpoint"); }), (Outcome{4, "no checkpoint"}));
}

TEST_F(AgreeTest, of_different_sentences_that_of_the_lowest_failing_rank_is_said) {
  const int lowest = std::min(1, last);
  const Outcome expected{2, (world.size() > 1 ? on_rank(lowest) : "") + fmt::format("broken by {}", lowest)};
  EXPECT_EQ(outcome([&] {
              if (world.rank() >= lowest) fail(ExitCode::usage, "broken by {}", world.rank());
            }),
            expected);
}

TEST_F(AgreeTest, the_same_sentence_with_different_codes_is_not_the_same) {
  if (world.size() == 1) GTEST_SKIP();
  EXPECT_EQ(outcome([&] { fail(world.rank() == 0 ? ExitCode::input : ExitCode::device, "broken"); }),
            (Outcome{3, on_rank(0) + "broken"}));
}

TEST_F(AgreeTest, what_is_not_an_error_of_ours_is_internal_with_its_text) {
  const std::string prefix = world.size() > 1 ? on_rank(last) : "";
  EXPECT_EQ(outcome([&] {
              if (world.rank() == last) throw std::bad_alloc();
            }),
            (Outcome{70, prefix + "std::bad_alloc"}));
  EXPECT_EQ(outcome([&] {
              if (world.rank() == last) throw std::logic_error("impossible");
            }),
            (Outcome{70, prefix + "impossible"}));
  EXPECT_EQ(outcome([] { throw 42; }), (Outcome{70, "something was thrown that is not an exception"}));
}

TEST_F(AgreeTest, an_empty_sentence_still_fails_everywhere) {
  EXPECT_EQ(outcome([] { throw std::runtime_error(""); }), (Outcome{70, ""}));
  EXPECT_EQ(outcome([] { throw std::runtime_error(""); }, true), (Outcome{70, ""}));
}

TEST_F(AgreeTest, on_root_runs_on_rank_0_only_and_says_its_sentence_everywhere) {
  int calls = 0;
  EXPECT_EQ(outcome([&] { ++calls; }, true), (Outcome{0, ""}));
  EXPECT_EQ(calls, world.rank() == 0 ? 1 : 0);
  EXPECT_EQ(outcome([] { fail(ExitCode::input, "a.h5 has no labels"); }, true),
            (Outcome{3, "a.h5 has no labels"}));
  EXPECT_EQ(outcome([] { throw std::bad_alloc(); }, true), (Outcome{70, "std::bad_alloc"}));
}

TEST_F(AgreeTest, ranks_can_go_on_after_an_agreed_failure) {
  EXPECT_EQ(outcome([] { fail(ExitCode::input, "no"); }).first, 3);
  EXPECT_EQ(outcome([] {}).first, 0);
}

}  // namespace
}  // namespace motley::comm
