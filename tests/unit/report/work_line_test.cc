#include "report/work_line.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace motley::report {
namespace {

TEST(WorkLine, says_how_much_is_done_how_fast_and_how_long_the_rest_takes) {
  EXPECT_EQ(work_text(20'000'000, 80'000'000, 10, "3 shards"),
            "20.0 MB of 80.0 MB  3 shards  2.0 MB/s  0:30 left");
  EXPECT_EQ(work_text(20'000'000, 0, 10, "3 shards"), "20.0 MB  3 shards  2.0 MB/s");
  EXPECT_EQ(work_text(80'000'000, 80'000'000, 10, "x"), "80.0 MB of 80.0 MB  x  8.0 MB/s");
  EXPECT_EQ(work_text(0, 80'000'000, 0, "x"), "0 B of 80.0 MB  x");
}

TEST(WorkLine, bytes_are_in_powers_of_ten) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.0 kB");
  EXPECT_EQ(bytes_text(999'949), "999.9 kB");
  EXPECT_EQ(bytes_text(999'951), "1.0 MB");
  EXPECT_EQ(bytes_text(1.25e9), "1.2 GB");
  EXPECT_EQ(bytes_text(5e15), "5000.0 TB");
}

double now = 0;

TEST(WorkLine, without_a_terminal_there_is_a_line_every_ten_seconds) {
  now = 100;
  testing::internal::CaptureStdout();
  {
    WorkLine line(false, 0, [] { return now; });
    for (; now < 131; now += 1) line.update(static_cast<std::uint64_t>(now - 100) * 1000, "x");
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(),
            "10.0 kB  x  1.0 kB/s\n20.0 kB  x  1.0 kB/s\n30.0 kB  x  1.0 kB/s\n");
}

TEST(WorkLine, on_a_terminal_it_is_redrawn_ten_times_a_second_and_ended) {
  now = 0;
  testing::internal::CaptureStdout();
  {
    WorkLine line(true, 0, [] { return now; });
    for (int i = 0; i < 8; ++i, now += 0.03) line.update(1, "x");
  }
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\r'), 1) << out;
  EXPECT_TRUE(out.ends_with("\n")) << out;
}

}  // namespace
}  // namespace motley::report
