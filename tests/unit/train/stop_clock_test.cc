#include "train/stop_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

namespace motley::train {
namespace {

TEST(StopClock, without_an_end_there_is_always_time) {
  StopClock clock({.checkpoint_deadline_s = 60});
  clock.saved_in(1e6);
  EXPECT_FALSE(clock.time_is_up(1e9));
  EXPECT_EQ(clock.ends_s(), 0);
}

TEST(StopClock, stop_after_is_when_stopping_begins) {
  StopClock clock({.stop_after_s = 100, .checkpoint_deadline_s = 60});
  clock.saved_in(10);
  clock.stepped_in(1);
  EXPECT_FALSE(clock.time_is_up(99.9));
  EXPECT_TRUE(clock.time_is_up(100));
}

TEST(StopClock, a_checkpoint_that_takes_longer_than_the_deadline_begins_earlier) {
  StopClock clock({.stop_after_s = 100, .checkpoint_deadline_s = 60});
  clock.saved_in(70);
  clock.stepped_in(10);  // 1.5 * 80 before 160
  EXPECT_TRUE(clock.is_too_slow());
  EXPECT_FALSE(clock.time_is_up(39.9));
  EXPECT_TRUE(clock.time_is_up(40));
}

TEST(StopClock, the_end_of_the_job_counts_with_the_deadline_before_it) {
  StopClock clock({.checkpoint_deadline_s = 60, .job_ends_s = 1000});
  EXPECT_FALSE(clock.time_is_up(939));
  EXPECT_TRUE(clock.time_is_up(940));
  StopClock both({.stop_after_s = 100, .checkpoint_deadline_s = 60, .job_ends_s = 1000});
  EXPECT_EQ(both.ends_s(), 160);
}

TEST(StopClock, slurm_says_when_a_job_ends) {
  const auto now =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  const auto with = [](const std::string& text) {
    ::setenv("SLURM_JOB_END_TIME", text.c_str(), 1);
    return seconds_to_job_end();
  };
  EXPECT_NEAR(with(std::to_string(now.count() + 500)), 499, 2);
  EXPECT_EQ(with(std::to_string(now.count() - 500)), 0);
  for (const char* text : {"", "tomorrow", "12 "}) EXPECT_EQ(with(text), 0) << text;
  ::unsetenv("SLURM_JOB_END_TIME");
  EXPECT_EQ(seconds_to_job_end(), 0);
}

}  // namespace
}  // namespace motley::train
