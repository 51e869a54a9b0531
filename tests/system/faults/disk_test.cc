// Disks that fail while a run saves: training goes on and says so, the checkpoint before stays as it is, and the next one that
// can be written stands.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "checkpoint/directory.h"
#include "core/files.h"
#include "support/background_job.h"
#include "support/paths.h"
#include "support/subprocess.h"

#ifdef MOTLEY_FAULTY_DISK

namespace motley {
namespace {

namespace fs = std::filesystem;

class FaultyDisk : public ::testing::Test {
 protected:
  FaultyDisk() {
    fs::create_directory(data);
    test::write_learnable_images(data / "train.h5", 900, 1);
    std::vector<std::string> words = {test::motley_program(),
                                      "train",
                                      "--data",
                                      data.string(),
                                      "--save-dir",
                                      run.string(),
                                      "--global-batch",
                                      "30",
                                      "--max-update",
                                      "1000000",
                                      "--save-interval-updates",
                                      "5",
                                      "--keep-interval-updates",
                                      "3",
                                      "--log-interval",
                                      "1",
                                      "--timeout",
                                      std::to_string(deadline_s)};
    job = std::make_unique<test::BackgroundJob>(
        notes, test::mpirun_command(ranks, test::BackgroundJob::noting(notes, words)),
        test::BackgroundJob::Environment{{"LD_PRELOAD", MOTLEY_FAULTY_DISK},
                                         {"MOTLEY_FAULT", fault.string()}});
  }

  void begin(const std::string& kind) const {
    write_file(directory.path() / "new-fault", kind, ExitCode::input);
    fs::rename(directory.path() / "new-fault", fault);
  }
  std::size_t times_said(const std::string& text) const {
    const std::string log = job->log();
    std::size_t times = 0;
    for (std::size_t at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++times;
    return times;
  }
  std::int64_t newest() const {
    const auto all = checkpoint::list(run);
    return all.empty() ? 0 : all.back().step;
  }
  bool wait_for_newer_than(std::int64_t step) const {
    return test::wait_until([&] { return newest() > step; });
  }

  static constexpr int ranks = 2, deadline_s = 12;
  test::TemporaryDirectory directory;
  fs::path data = directory.path() / "data", run = directory.path() / "run",
           notes = directory.path() / "notes", fault = directory.path() / "fault";
  std::unique_ptr<test::BackgroundJob> job;
};

TEST_F(FaultyDisk, training_goes_on_and_the_next_checkpoint_stands) {
  ASSERT_TRUE(wait_for_newer_than(0)) << job->log();
  const struct {
    const char* kind;
    const char* said;
  } faults[] = {{"ENOSPC", "No space left on device"},
                {"EDQUOT", "Disk quota exceeded"},
                {"EIO", "Input/output error"},
                {"EROFS", "Read-only file system"}};
  std::size_t failures = 0;
  for (const auto& [kind, said] : faults) {
    SCOPED_TRACE(kind);
    begin(kind);
    ASSERT_TRUE(test::wait_until([&] { return times_said(said) >= 2; })) << job->log();
    const std::int64_t before = newest();
    EXPECT_NO_THROW(checkpoint::verify(run / "latest"));
    EXPECT_EQ(checkpoint::newest_good(run)->filename(), fs::canonical(run / "latest").filename());
    fs::remove(fault);
    ASSERT_TRUE(wait_for_newer_than(before)) << job->log();
    EXPECT_GE(times_said("was not written: "), failures + 2);
    failures = times_said("was not written: ");
  }
  ASSERT_EQ(::kill(job->rank(0), SIGTERM), 0);
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  for (const checkpoint::Listed& one : checkpoint::list(run)) EXPECT_NO_THROW(checkpoint::verify(one.path));
  for (const auto& entry : fs::directory_iterator(run))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
}

TEST_F(FaultyDisk, writes_that_take_a_part_only_are_gone_on_with) {
  begin("short");
  ASSERT_TRUE(wait_for_newer_than(10)) << job->log();
  ASSERT_EQ(::kill(job->rank(0), SIGTERM), 0);
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
  EXPECT_EQ(times_said("was not written: "), 0u) << job->log();
  for (const checkpoint::Listed& one : checkpoint::list(run)) EXPECT_NO_THROW(checkpoint::verify(one.path));
}

// Steps go on while the disk is slow; the next checkpoint waits for the one before it, and that is said.
TEST_F(FaultyDisk, a_checkpoint_that_is_still_being_written_is_waited_for) {
  ASSERT_TRUE(wait_for_newer_than(0)) << job->log();
  begin("slow");
  EXPECT_TRUE(test::wait_until([&] { return times_said("was still being written: waited") >= 2; }))
      << job->log();
  fs::remove(fault);
  ASSERT_EQ(::kill(job->rank(1), SIGTERM), 0);
  EXPECT_EQ(job->exit_code(60), 75) << job->log();
}

TEST_F(FaultyDisk, a_last_checkpoint_that_cannot_be_written_is_no_success) {
  ASSERT_TRUE(wait_for_newer_than(0)) << job->log();
  begin("ENOSPC");
  ASSERT_TRUE(test::wait_until([&] { return times_said("No space left on device") >= 1; })) << job->log();
  ASSERT_EQ(::kill(job->rank(1), SIGUSR1), 0);
  EXPECT_EQ(job->exit_code(60), 4) << job->log();
  EXPECT_NO_THROW(checkpoint::verify(run / "latest"));
}

TEST_F(FaultyDisk, a_rank_that_is_blocked_in_a_read_is_named) {
  ASSERT_TRUE(wait_for_newer_than(0)) << job->log();
  const auto began = std::chrono::steady_clock::now();
  begin("block");
  const int code = job->exit_code(60);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  EXPECT_EQ(code, 5) << job->log();
  EXPECT_LT(seconds, deadline_s + 10);
  const std::string log = job->log();
  const bool by_rank_0 = std::regex_search(
      log,
      std::regex(
          R"(nothing has moved for [0-9.]+ s: rank 1 \(host [^)]+\) was last seen reading the training data in step )"));
  const bool by_itself = std::regex_search(
      log, std::regex(R"(rank 1: window [0-9]+ of [^ ]+/train.h5 was not read within 12 s)"));
  EXPECT_TRUE(by_rank_0 || by_itself) << log;
}

}  // namespace
}  // namespace motley

#endif
