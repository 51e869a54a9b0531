// What really goes to the terminal: through a pseudo-terminal, so that widths and the mixing with messages
// are real.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "core/log.h"
#include "report/metrics.h"
#include "report/progress.h"

namespace motley::report {
namespace {

StepRecord record_of(std::int64_t step) {
  StepRecord record;
  record.step = step;
  record.loss = 0.5;
  record.samples = 64;
  record.step_s = 0.5;
  record.ranks = {{64, 0.45, 0.01}};
  return record;
}

// Standard output and standard error both go to a pseudo-terminal until text() is called.
class Terminal {
 public:
  explicit Terminal(int columns) {
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    EXPECT_EQ(::grantpt(master_), 0);
    EXPECT_EQ(::unlockpt(master_), 0);
    const int slave = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    EXPECT_GE(slave, 0);
    winsize size{};
    size.ws_col = static_cast<unsigned short>(columns);
    ::ioctl(slave, TIOCSWINSZ, &size);
    termios mode{};
    ::tcgetattr(slave, &mode);
    ::cfmakeraw(&mode);
    ::tcsetattr(slave, TCSANOW, &mode);
    std::fflush(stdout);
    out_ = ::dup(STDOUT_FILENO);
    err_ = ::dup(STDERR_FILENO);
    ::dup2(slave, STDOUT_FILENO);
    ::dup2(slave, STDERR_FILENO);
    ::close(slave);
  }
  ~Terminal() { restore(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // The kernel passes on what is written in its own time: read until a mark that comes last has arrived.
  std::string text() {
    std::fflush(stdout);
    constexpr std::string_view mark = "\x04 the end \x04";
    EXPECT_EQ(::write(STDOUT_FILENO, mark.data(), mark.size()), static_cast<ssize_t>(mark.size()));
    std::string all;
    pollfd ready{master_, POLLIN, 0};
    while (!all.ends_with(mark) && ::poll(&ready, 1, 60'000) == 1) {
      char block[4096];
      const ssize_t got = ::read(master_, block, sizeof block);
      if (got <= 0) break;
      all.append(block, static_cast<std::size_t>(got));
    }
    restore();
    EXPECT_TRUE(all.ends_with(mark)) << all;
    return all.substr(0, all.rfind(mark));
  }

 private:
  void restore() {
    if (out_ < 0) return;
    ::dup2(out_, STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    ::close(out_);
    ::close(err_);
    ::close(master_);
    out_ = -1;
  }
  int master_ = -1, out_ = -1, err_ = -1;
};

constexpr RunLength length{100, 0};

double g_now_s = 0;
double hand_turned() {
  return g_now_s;
}

TEST(ProgressOnATerminal, one_line_is_redrawn_at_most_ten_times_a_second_and_ended_with_the_last_step) {
  Terminal terminal(80);
  {
    Progress progress(LogFormat::simple, true, length, hand_turned);
    EXPECT_TRUE(progress.redraws());
    for (std::int64_t step = 1; step <= 100; ++step) {
      progress.step(record_of(step));
      g_now_s += 0.0015;  // the 68th is the first to come a tenth of a second after the one drawn
    }
  }
  EXPECT_EQ(terminal.text(),
            "\repoch 1  step 1/100  loss 0.5000  128 samples/s  0:50 left  work 90 %\x1b[K"
            "\repoch 1  step 68/100  loss 0.5000  128 samples/s  0:16 left  work 90 %\x1b[K"
            "\repoch 1  step 100/100  loss 0.5000  128 samples/s  0:00 left  work 90 %\x1b[K\n");
}

TEST(ProgressOnATerminal, the_line_is_drawn_again_after_a_tenth_of_a_second) {
  Terminal terminal(15);
  {
    Progress progress(LogFormat::simple, true, length, hand_turned);
    progress.step(record_of(1));
    g_now_s += 0.11;
    progress.step(record_of(2));
  }
  EXPECT_EQ(terminal.text(), "\r1  1/100\x1b[K\r1  2/100\x1b[K\n");
}

TEST(ProgressOnATerminal, the_last_column_stays_free) {
  // "1  1/100  loss 0.5000" has 21 letters.
  Terminal wide(21);
  { Progress(LogFormat::simple, true, length).step(record_of(1)); }
  EXPECT_EQ(wide.text(), "\r1  1/100\x1b[K\n");
}

TEST(ProgressOnATerminal, messages_and_validation_lines_get_lines_of_their_own) {
  Terminal terminal(40);
  {
    Progress progress(LogFormat::simple, true, length, hand_turned);
    progress.step(record_of(1));
    log::info("checkpoint written");
    log::info("and another message");
    g_now_s += 0.11;
    progress.step(record_of(2));
    ValidRecord valid;
    valid.subset = "valid";
    progress.valid(valid);
  }
  EXPECT_EQ(terminal.text(),
            "\r1  1/100  loss 0.5000  128/s  eta 0:50\x1b[K\n"
            "motley: checkpoint written\n"
            "motley: and another message\n"
            "\r1  2/100  loss 0.5000  128/s  eta 0:49\x1b[K\n"
            "valid  epoch 1  step 0  loss 0.000  0 samples in 0.0 s\n");
}

TEST(ProgressOnATerminal, messages_of_another_thread_always_start_a_line) {
  Terminal terminal(40);
  {
    std::jthread other([] {
      for (int i = 0; i < 20; ++i) {
        log::info("from the reader");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
    for (std::int64_t step = 1; step <= 20; ++step) {
      Progress(LogFormat::simple, true, length).step(record_of(step));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  const std::string text = terminal.text();
  std::size_t messages = 0;
  for (std::size_t at = 0; (at = text.find("motley: ", at)) != std::string::npos; ++at, ++messages) {
    EXPECT_TRUE(at == 0 || text[at - 1] == '\n') << text;
  }
  EXPECT_EQ(messages, 20u);
}

TEST(ProgressElsewhere, each_step_is_a_plain_line) {
  ::testing::internal::CaptureStdout();
  {
    Progress progress(LogFormat::simple, false, length);
    EXPECT_FALSE(progress.redraws());
    progress.step(record_of(1));
    progress.step(record_of(2));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            "epoch 1  step 1/100  loss 0.5000  128 samples/s  0:50 left  work 90 %\n"
            "epoch 1  step 2/100  loss 0.5000  128 samples/s  0:49 left  work 90 %\n");
}

TEST(ProgressElsewhere, the_time_left_follows_a_change_of_speed_within_a_hundred_steps) {
  ::testing::internal::CaptureStdout();
  {
    Progress progress(LogFormat::simple, false, {1000, 0});
    StepRecord slow = record_of(1);
    slow.step_s = 50;
    progress.step(slow);
    StepRecord later = record_of(500);
    later.steps = 499;
    later.step_s = 499 * 0.1;
    progress.step(later);
  }
  EXPECT_NE(::testing::internal::GetCapturedStdout().find("  0:51 left"), std::string::npos);
}

TEST(ProgressElsewhere, json_prints_the_lines_of_the_metrics_file_on_terminals_too) {
  ::testing::internal::CaptureStdout();
  const ValidRecord valid;
  {
    Progress progress(LogFormat::json, true, length);
    EXPECT_FALSE(progress.redraws());
    progress.step(record_of(1));
    progress.valid(valid);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(),
            to_json_line(record_of(1)) + "\n" + to_json_line(valid) + "\n");
}

TEST(ProgressElsewhere, none_prints_nothing) {
  ::testing::internal::CaptureStdout();
  {
    Progress progress(LogFormat::none, true, length);
    progress.step(record_of(1));
    progress.valid({});
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace motley::report
