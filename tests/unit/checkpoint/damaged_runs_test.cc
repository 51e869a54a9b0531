// A thousand directories of checkpoints that chance has damaged: every damage is found, and the newest checkpoint without any
// is the one that is used. The damages of one round follow from its number.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>

#include "checkpoint/commit.h"
#include "checkpoint/directory.h"
#include "sample.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::Sample;
using test::value_of;

constexpr int checkpoints = 4;
const char* const listed[] = {"MANIFEST.json", "model.safetensors", "optimizer.h5",
                              "trainer.json",  "config.json",       "vocab.txt"};

class DamagedRuns : public ::testing::Test {
 protected:
  DamagedRuns() {
    for (int step = 1; step <= checkpoints; ++step) write(original_, step, Sample(step).contents);
  }

  std::size_t below(std::size_t end) {
    return std::uniform_int_distribution<std::size_t>(0, end - 1)(random_);
  }
  fs::path directory(int step) const { return run_ / directory_name(step); }
  fs::path some_file(int step) { return directory(step) / listed[below(std::size(listed))]; }

  static std::string content(const fs::path& path) {
    std::error_code error;
    if (!fs::is_regular_file(path, error)) return {};
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void put(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

  // One damage to checkpoint `step`.
  void damage(int step) {
    const fs::path path = some_file(step);
    std::string bytes = content(path);
    if (bytes.empty()) return;  // it has been damaged enough
    switch (below(9)) {
      case 0: {
        char& byte = bytes[below(bytes.size())];
        byte = static_cast<char>(byte ^ (1 << below(8)));
        return put(path, bytes);
      }
      case 1:
        return fs::resize_file(path, below(bytes.size()));
      case 2:
        return put(path, bytes + std::string(1 + below(5000), '\0'));
      case 3:
        return static_cast<void>(fs::remove(path));
      case 4: {  // a block that never came to the disk
        const std::size_t first = below(bytes.size()),
                          length = std::min(bytes.size() - first, 1 + below(512));
        return put(path, bytes.replace(first, length, length, '\0'));
      }
      case 5: {  // two files of the checkpoint in each other's place
        const fs::path other = some_file(step), between = directory(step) / "between";
        if (other == path || content(other).empty()) return;
        fs::rename(path, between);
        fs::rename(other, path);
        return fs::rename(between, other);
      }
      case 6: {  // that of another checkpoint
        const fs::path other = directory(1 + static_cast<int>(below(checkpoints))) / path.filename();
        if (other != path && !content(other).empty())
          fs::copy_file(other, path, fs::copy_options::overwrite_existing);
        return;
      }
      case 7:
        fs::remove(path);
        return static_cast<void>(fs::create_directory(path));
      default:
        fs::remove(path);
        return fs::create_symlink(path.filename(), path);  // a loop
    }
  }

  // What does not belong to any checkpoint.
  void litter() {
    if (below(2) == 0) {
      const fs::path stale = run_ / (".tmp-" + directory_name(5) + "-4711");
      fs::create_directory(stale);
      put(stale / "model.safetensors", std::string(below(4000), 'x'));
    }
    if (below(3) == 0) {
      fs::remove(run_ / "latest");
      const fs::path targets[] = {"step-00000099", "latest", "step-00000001/trainer.json", "/"};
      fs::create_symlink(targets[below(std::size(targets))], run_ / "latest");
    }
    if (below(4) == 0) fs::create_directory(run_ / "step-00000007x");
    if (below(4) == 0) put(run_ / "step-00000009", "a file");
  }

  bool is_damaged(int step) const {
    for (const char* name : listed) {
      const fs::path path = directory(step) / name;
      std::error_code error;
      if (!fs::is_regular_file(path, error) ||
          content(path) != content(original_ / directory_name(step) / name))
        return true;
    }
    return false;
  }

  motley::test::TemporaryDirectory temporary_;
  const fs::path original_ = temporary_.path() / "original", run_ = temporary_.path() / "run";
  std::mt19937_64 random_;
};

TEST_F(DamagedRuns, every_damage_is_found_and_the_newest_good_checkpoint_used) {
  std::map<int, int> used;  // how often each was the newest good one; 0: there was none
  int damaged = 0;
  for (unsigned round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    random_.seed(round);
    fs::remove_all(run_);
    fs::copy(original_, run_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    // Of the newest first, all of them now and then.
    const int damages = 1 + static_cast<int>(below(checkpoints));
    for (int i = 0; i < damages; ++i) damage(checkpoints - (i < 3 || below(2) == 0 ? i : 0));
    litter();

    std::set<int> bad;
    int good = checkpoints;
    for (; good > 0 && is_damaged(good); --good) bad.insert(good);
    ++used[good];
    damaged += static_cast<int>(bad.size());

    const Search found = search(run_);
    std::set<int> told;
    for (const Bad& one : found.bad) told.insert(static_cast<int>(one.checkpoint.step));
    EXPECT_EQ(told, bad);
    ASSERT_EQ(found.good.has_value(), good > 0);
    if (good > 0) {
      EXPECT_EQ(value_of(*found.good), good);
    }

    // A run goes on: what was bad is out of the way, nothing is deleted, and `latest` leads to what is used.
    ::testing::internal::CaptureStderr();
    set_aside(run_, found);
    remove_leftovers(run_);
    ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(has_set_aside(run_), !bad.empty());
    for (const int step : bad) EXPECT_TRUE(fs::is_directory(run_ / ("bad-" + directory_name(step))));
    const Search again = search(run_);
    EXPECT_TRUE(again.bad.empty());
    EXPECT_EQ(again.good, found.good);
    ASSERT_FALSE(HasFailure());
  }
  // The rounds are what they claim to be.
  EXPECT_GT(damaged, 1500);
  for (int step = 0; step < checkpoints; ++step) EXPECT_GT(used[step], 20) << step;
}

}  // namespace
}  // namespace motley::checkpoint
