// Law 4 by experiment: a process that writes checkpoints in a loop is killed at random moments; whatever it
// leaves, the newest good checkpoint is at least as new as the last one that it had reported as written.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <random>

#include "checkpoint/commit.h"
#include "checkpoint/directory.h"
#include "checkpoint/retention.h"
#include "sample.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using test::Sample;
using test::value_of;

constexpr std::int64_t elements = 4000;

// Replaces without renameat2, as on file systems that do not have it.
void write_by_way_of_aside(const fs::path& save, std::int64_t step, const Contents& contents) {
  const fs::path finished = write(save / "finished", step, contents);
  commit_directory(finished, save / directory_name(step), Replace::aside);
}

// Each step is written twice, so that half of the writes replace. Values count the writes.
[[noreturn]] void write_until_killed(const fs::path& save, int value, bool aside, int report) {
  try {
    remove_leftovers(save);
    while (true) {
      ++value;
      const Sample sample(value, elements);
      if (aside) {
        write_by_way_of_aside(save, value / 2, sample.contents);
      } else {
        write(save, value / 2, sample.contents);
      }
      if (::write(report, &value, sizeof value) != sizeof value) ::_exit(1);
      apply_retention(save, {2, 2});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "the writer failed: %s\n", error.what());
  }
  ::_exit(1);
}

class Kill : public ::testing::TestWithParam<bool> {};

TEST_P(Kill, at_any_moment_leaves_a_good_checkpoint) {
  const motley::test::TemporaryDirectory directory;
  const fs::path save = directory.path() / "run";
  std::mt19937 random(GetParam() ? 11 : 10);
  int value = 1;
  const auto start = std::chrono::steady_clock::now();
  write(save, 0, Sample(value, elements).contents);
  const std::chrono::duration<double, std::micro> write_us = std::chrono::steady_clock::now() - start;
  int written = 0;
  for (int round = 0; round < 30; ++round) {
    int report[2];
    ASSERT_EQ(::pipe(report), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(report[0]);
      write_until_killed(save, value, GetParam(), report[1]);
    }
    ::close(report[1]);
    // After none to three more checkpoints, at any phase of the next one, however slow the disk is.
    int reported = value;
    for (std::size_t i = random() % 4; i > 0; --i) {
      ASSERT_EQ(::read(report[0], &reported, sizeof reported), ssize_t{sizeof reported});
    }
    ::usleep(
        static_cast<useconds_t>(std::uniform_real_distribution<double>(0, 1.5)(random) * write_us.count()));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    for (int next = 0; ::read(report[0], &next, sizeof next) == sizeof next;) reported = next;
    ::close(report[0]);

    const auto newest = newest_good(save);
    ASSERT_TRUE(newest.has_value());
    const int found = value_of(*newest, elements);
    EXPECT_GE(found, reported) << "round " << round;
    EXPECT_LE(found, reported + 1) << "round " << round;
    for (const Listed& checkpoint : list(save)) EXPECT_NO_THROW(verify(checkpoint.path)) << checkpoint.path;
    written += found - value;
    value = found;
  }
  EXPECT_GT(written, 30);

  remove_leftovers(save);
  for (const std::string& name : names_in(save)) {
    EXPECT_TRUE(name == "latest" || name == "finished" || step_of(name)) << name;
  }
  EXPECT_EQ(value_of(*newest_good(save), elements), value);
}

INSTANTIATE_TEST_SUITE_P(Replacement, Kill, ::testing::Values(false, true),
                         [](const auto& kind) { return kind.param ? "by_way_of_aside" : "by_exchange"; });

}  // namespace
}  // namespace motley::checkpoint
