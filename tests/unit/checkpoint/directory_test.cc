#include "checkpoint/directory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/commit.h"
#include "sample.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::failure_of;
using test::names_in;
using test::Sample;
using test::value_of;
using Names = std::vector<std::string>;

class Directory : public ::testing::Test {
 protected:
  // Not there before the first write, and with a space.
  fs::path save() const { return directory_.path() / "runs" / "my run"; }
  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> result;
    for (const Listed& checkpoint : list(save())) result.push_back(checkpoint.step);
    return result;
  }
  motley::test::TemporaryDirectory directory_;
};

TEST_F(Directory, what_is_written_is_read_back) {
  const fs::path path = write(save(), 1000, Sample(7).contents);
  EXPECT_EQ(path, save() / "step-00001000");
  EXPECT_EQ(value_of(path), 7);
  EXPECT_EQ(names_in(save()), (Names{"latest", "step-00001000"}));
  EXPECT_EQ(names_in(path), (Names{"MANIFEST.json", "config.json", "model.safetensors", "optimizer.h5",
                                   "trainer.json", "vocab.txt"}));
  EXPECT_EQ(read_file(path / "vocab.txt", ExitCode::input), "a\nb\n");
  EXPECT_EQ(Reader(path).model().metadata().at("format"), "pt");
}

TEST_F(Directory, latest_follows_each_write_and_can_be_moved_with_its_directory) {
  write(save(), 1, Sample(1).contents);
  write(save(), 2, Sample(2).contents);
  fs::rename(save(), directory_.path() / "moved");
  EXPECT_EQ(value_of(directory_.path() / "moved" / "latest"), 2);
  EXPECT_EQ(Reader(directory_.path() / "moved" / "latest").path().filename(), "step-00000002");
}

TEST_F(Directory, relative_paths_work_with_and_without_a_slash_at_the_end) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_.path());
  for (const char* where : {"a", "b c/", "./d/e/", "."}) {
    EXPECT_EQ(value_of(write(where, 3, Sample(3).contents)), 3) << where;
    EXPECT_EQ(value_of(*newest_good(where)), 3) << where;
    EXPECT_EQ(value_of(fs::path(where) / "latest"), 3) << where;
    write(where, 3, Sample(4).contents);
    EXPECT_EQ(value_of(*newest_good(where)), 4) << where;
  }
  fs::current_path(before);
}

TEST_F(Directory, a_checkpoint_of_the_same_step_is_replaced_whole) {
  write(save(), 5, Sample(1).contents);
  Sample second(2);
  second.contents.extra_files.erase("vocab.txt");
  const fs::path path = write(save(), 5, second.contents);
  EXPECT_EQ(value_of(path), 2);
  EXPECT_FALSE(fs::exists(path / "vocab.txt"));
  EXPECT_EQ(names_in(save()), (Names{"latest", "step-00000005"}));
}

TEST_F(Directory, the_same_contents_give_the_same_bytes) {
  const fs::path a = write(directory_.path() / "a", 5, Sample(1).contents);
  const fs::path b = write(directory_.path() / "b", 5, Sample(1).contents);
  for (const std::string& name : names_in(a)) {
    EXPECT_EQ(read_file(a / name, ExitCode::input), read_file(b / name, ExitCode::input)) << name;
  }
}

TEST_F(Directory, list_takes_only_directories_with_the_exact_name_by_ascending_step) {
  for (const int step : {100, 20, 123456789, 0}) write(save(), step, Sample(step).contents);
  for (const char* odd :
       {"step-5", "step-000000005", "step-", "step-0000000x", "step-00000007.bak", "Step-00000008",
        "step--0000001", "step-99999999999999999999", "xstep-00000009", "old"}) {
    fs::create_directories(save() / odd);
  }
  write_file(save() / "step-00000011", "a file", ExitCode::input);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{0, 20, 100, 123456789}));
}

TEST_F(Directory, nothing_written_yet_is_no_checkpoint_and_no_error) {
  EXPECT_TRUE(list(save()).empty());
  EXPECT_FALSE(newest_good(save()).has_value());
  remove_leftovers(save());
  fs::create_directories(save());
  EXPECT_FALSE(newest_good(save()).has_value());
}

TEST_F(Directory, a_file_in_the_place_of_the_directory_is_said) {
  write_file(directory_.path() / "runs", "", ExitCode::input);
  EXPECT_NE(failure_of([&] { write(save(), 1, Sample(1).contents); }).find("cannot make the directory"),
            std::string::npos);
  EXPECT_NE(failure_of([&] { list(directory_.path() / "runs"); }).find("Not a directory"), std::string::npos);
}

TEST_F(Directory, latest_does_not_matter_for_what_is_found) {
  write(save(), 1, Sample(1).contents);
  write(save(), 2, Sample(2).contents);
  const auto newest = [this] { return value_of(*newest_good(save())); };
  const fs::path latest = save() / "latest";
  fs::remove(latest);
  EXPECT_EQ(newest(), 2);
  fs::create_symlink("step-00000009", latest);
  EXPECT_EQ(newest(), 2);
  EXPECT_EQ(failure_of([&] { Reader reader(latest); }),
            latest.string() + " is a link to step-00000009, where there is no checkpoint");
  fs::remove(latest);
  fs::create_symlink("step-00000001", latest);
  EXPECT_EQ(newest(), 2);
  EXPECT_EQ(value_of(latest), 1);
}

TEST_F(Directory, a_latest_that_is_in_the_way_costs_a_warning_only) {
  fs::create_directories(save() / "latest" / "something");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(value_of(write(save(), 1, Sample(1).contents)), 1);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("warning: cannot rename"), std::string::npos);
  EXPECT_EQ(names_in(save()), (Names{"latest", "step-00000001"}));
}

TEST_F(Directory, best_is_marked_and_only_among_the_committed) {
  write(save(), 1, Sample(1).contents);
  const fs::path second = write(save(), 2, Sample(2).contents);
  mark_best(save(), second);
  EXPECT_EQ(value_of(save() / "best"), 2);
  mark_best(save(), save() / "step-00000001");
  EXPECT_EQ(value_of(save() / "best"), 1);
  EXPECT_NE(failure_of([&] { mark_best(save(), save() / "step-00000003"); }), "no failure");
  EXPECT_NE(failure_of([&] { mark_best(save(), save() / "latest"); }), "no failure");
  EXPECT_EQ(value_of(save() / "best"), 1);
}

TEST_F(Directory, the_newest_good_one_is_taken_and_bad_ones_are_warned_of_and_left) {
  for (const int step : {1, 2, 3}) write(save(), step, Sample(step).contents);
  fs::resize_file(save() / "step-00000003" / "model.safetensors", 10);
  fs::remove(save() / "step-00000002" / "MANIFEST.json");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(value_of(*newest_good(save())), 1);
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warnings.find("step-00000003/model.safetensors has 10 bytes and should have"), std::string::npos)
      << warnings;
  EXPECT_NE(warnings.find("step-00000002 is not a complete checkpoint: it has no MANIFEST.json"),
            std::string::npos)
      << warnings;
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2, 3}));
  fs::remove(save() / "step-00000001" / "trainer.json");
  ::testing::internal::CaptureStderr();
  const std::string failure = failure_of([&] { newest_good(save()); });
  ::testing::internal::GetCapturedStderr();
  EXPECT_NE(failure.find("has 3 checkpoints, but none that can be used; the newest: "), std::string::npos)
      << failure;
}

TEST_F(Directory, bad_ones_are_set_aside_by_a_run_that_goes_on) {
  for (int round = 0; round < 2; ++round) {
    for (const int step : {1, 2, 3}) write(save(), step, Sample(step).contents);
    mark_best(save(), save() / "step-00000003");
    fs::remove(save() / "step-00000003" / "trainer.json");
    const Search found = search(save());
    EXPECT_EQ(value_of(*found.good), 2);
    ::testing::internal::CaptureStderr();
    set_aside(save(), found);
    const std::string warnings = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(warnings.find("step-00000003 cannot be used: "), std::string::npos) << warnings;
    EXPECT_NE(warnings.find(round == 0 ? "bad-step-00000003" : "bad-2-step-00000003"), std::string::npos)
        << warnings;
    EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
    EXPECT_EQ(value_of(save() / "latest"), 2);
    EXPECT_FALSE(fs::is_symlink(save() / "best"));
  }
  EXPECT_TRUE(has_set_aside(save()));
}

TEST_F(Directory, leftovers_of_killed_processes_are_removed_and_nothing_else) {
  write(save(), 1, Sample(1).contents);
  fs::create_directories(save() / ".tmp-step-00000002-4711" / "x");
  fs::create_symlink("step-00000002", save() / ".tmp-latest-4711");
  fs::create_directories(save() / ".hidden");
  remove_leftovers(save());
  EXPECT_EQ(names_in(save()), (Names{".hidden", "latest", "step-00000001"}));
}

TEST_F(Directory, a_leftover_of_a_process_with_the_same_number_is_no_obstacle) {
  const fs::path leftover = temporary_path(save(), "step-00000001");
  fs::create_directories(leftover);
  write_file(leftover / "vocab.txt.old", "x", ExitCode::input);
  EXPECT_EQ(names_in(write(save(), 1, Sample(1).contents)).size(), 6u);
}

TEST_F(Directory, without_an_exchange_the_old_one_is_set_aside_for_the_moment) {
  const fs::path committed = write(save(), 1, Sample(1).contents);
  const fs::path finished = write(directory_.path() / "other", 1, Sample(2).contents);
  commit_directory(finished, committed, Replace::aside);
  EXPECT_EQ(value_of(committed), 2);
  EXPECT_EQ(names_in(save()), (Names{"latest", "step-00000001"}));
}

TEST_F(Directory, a_checkpoint_that_was_set_aside_counts_until_its_successor_is_there) {
  const fs::path committed = write(save(), 1, Sample(1).contents);
  const fs::path aside = save() / ".old-step-00000001-4711";
  fs::rename(committed, aside);
  EXPECT_EQ(value_of(*newest_good(save())), 1);
  remove_leftovers(save());
  EXPECT_EQ(names_in(save()), (Names{"latest", "step-00000001"}));
  fs::rename(committed, aside);
  write(save(), 1, Sample(2).contents);
  EXPECT_EQ(value_of(*newest_good(save())), 2);
  EXPECT_EQ(steps().size(), 1u);
  remove_leftovers(save());
  EXPECT_EQ(names_in(save()), (Names{"latest", "step-00000001"}));
  EXPECT_EQ(value_of(*newest_good(save())), 2);
}

TEST_F(Directory, a_run_that_goes_back_keeps_what_it_abandons_out_of_the_way) {
  for (int round = 0; round < 2; ++round) {
    for (const int step : {1, 2, 3}) write(save(), step, Sample(step + 10 * round).contents);
    ::testing::internal::CaptureStderr();
    supersede_after(save(), 2);
    EXPECT_NE(::testing::internal::GetCapturedStderr().find("goes back to step 2"), std::string::npos);
    EXPECT_EQ(value_of(*newest_good(save())), 2 + 10 * round);
  }
  EXPECT_EQ(value_of(save() / "superseded-step-00000003"), 3);
  EXPECT_EQ(value_of(save() / "superseded-2-step-00000003"), 13);
  supersede_after(save(), 2);
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{1, 2}));
}

TEST_F(Directory, a_run_that_goes_back_leaves_no_link_to_what_it_abandons) {
  for (const int step : {1, 2, 3}) write(save(), step, Sample(step).contents);
  mark_best(save(), save() / "step-00000002");
  ::testing::internal::CaptureStderr();
  supersede_after(save(), 2);
  EXPECT_EQ(value_of(save() / "latest"), 2);
  EXPECT_EQ(value_of(save() / "best"), 2);
  supersede_after(save(), 1);
  EXPECT_EQ(value_of(save() / "latest"), 1);
  EXPECT_FALSE(fs::is_symlink(fs::symlink_status(save() / "best")));
  supersede_after(save(), 0);
  ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(names_in(save()),
            (Names{"superseded-step-00000001", "superseded-step-00000002", "superseded-step-00000003"}));
}

TEST_F(Directory, options_that_are_not_utf8_cost_no_checkpoint) {
  Sample sample(1);
  sample.contents.trainer["data"] = "/data/\xff\xfe.h5";
  EXPECT_EQ(value_of(write(save(), 1, sample.contents)), 1);
}

TEST_F(Directory, extra_files_may_not_take_the_names_of_the_others) {
  for (const char* name : {"MANIFEST.json", "model.safetensors", "../x", "", "a/b"}) {
    Sample sample(1);
    sample.contents.extra_files.emplace(name, "content");
    EXPECT_THROW(write(save(), 1, sample.contents), Error) << name;
    EXPECT_TRUE(names_in(save()).empty()) << name;
  }
}

}  // namespace
}  // namespace motley::checkpoint
