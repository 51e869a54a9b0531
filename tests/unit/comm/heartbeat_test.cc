#include "comm/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>

namespace motley::comm {
namespace {

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class HeartbeatTest : public ::testing::Test {
 protected:
  static constexpr double timeout_s = 0.4;
  const Communicator all_{MPI_COMM_WORLD, 60}, world_{MPI_COMM_WORLD, timeout_s};

  // The last rank is the one that others wait for.
  bool is_late() const { return world_.size() > 1 && world_.rank() == world_.size() - 1; }
  Heartbeat::End note() {
    return [this](const std::string& sentence) {
      const std::lock_guard lock(mutex_);
      ended_ += sentence;
    };
  }
  std::string ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  std::mutex mutex_;
  std::string ended_;
};

TEST_F(HeartbeatTest, a_wait_lasts_as_long_as_something_moves) {
  Heartbeat heartbeat(world_, "a device", note());
  if (is_late()) {
    for (int i = 0; i < 40; ++i) {
      note_progress();
      sleep_ms(50);
    }
  }
  EXPECT_NO_THROW(world_.barrier("a rank that computes for long"));
  EXPECT_EQ(ended(), "");
  all_.barrier("the end of the test");
}

TEST_F(HeartbeatTest, when_nothing_moves_rank_0_says_who_keeps_the_others_waiting) {
  Heartbeat heartbeat(world_, "a device", note());
  note_step(3);
  if (is_late()) {
    note_phase("computing");
    sleep_ms(1500);
  }
  EXPECT_NO_THROW(world_.barrier("a rank that is late"))
      << "rank 0 is to speak before waits end by themselves";
  if (world_.size() > 1 && world_.rank() == 0) {
    const std::string late =
        "rank " + std::to_string(world_.size() - 1) + " (host " + world_.host() + ", a device)";
    EXPECT_NE(ended().find(late + " was last seen computing in step 3, for "), std::string::npos) << ended();
    EXPECT_EQ(ended().find("rank 0 ("), std::string::npos) << ended();
  } else {
    EXPECT_EQ(ended(), "");
  }
  all_.barrier("the end of the test");
}

TEST_F(HeartbeatTest, one_after_another_may_beat) {
  for (int i = 0; i < 3; ++i) {
    Heartbeat heartbeat(world_, "a device", note());
    sleep_ms(30 * world_.rank());
  }
  EXPECT_EQ(ended(), "");
  // Without one, waits have their own clocks.
  EXPECT_FALSE(deadline_passed(1, 2));
  EXPECT_TRUE(deadline_passed(3, 2));
  all_.barrier("the end of the test");
}

}  // namespace
}  // namespace motley::comm
