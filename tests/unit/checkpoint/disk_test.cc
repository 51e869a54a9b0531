// Disks that are full or may not be written: the earlier checkpoint stays, nothing half-made does.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>

#include "checkpoint/directory.h"
#include "checkpoint/optimizer_file.h"
#include "sample.h"
#include "support/file_size_limit.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;
using motley::test::FileSizeLimit;
using test::failure_of;
using test::names_in;
using test::Sample;
using test::value_of;

class Disk : public ::testing::Test {
 protected:
  Disk() { write(save_, 1, Sample(1).contents); }
  void expect_as_before() const {
    EXPECT_EQ(names_in(save_), (std::vector<std::string>{"latest", "step-00000001"}));
    EXPECT_EQ(value_of(*newest_good(save_)), 1);
    EXPECT_EQ(value_of(save_ / "latest"), 1);
  }
  motley::test::TemporaryDirectory directory_;
  fs::path save_ = directory_.path() / "run";
};

TEST_F(Disk, full_while_the_model_is_written) {
  constexpr std::int64_t elements = 1 << 18;
  Sample sample(2, elements);
  std::string failure;
  {
    const FileSizeLimit limit(std::size_t{1} << 19);
    failure = failure_of([&] { write(save_, 2, sample.contents); });
  }
  EXPECT_NE(failure.find("model.safetensors"), std::string::npos) << failure;
  EXPECT_NE(failure.find("File too large"), std::string::npos) << failure;
  expect_as_before();
  EXPECT_EQ(value_of(write(save_, 2, sample.contents), elements), 2);
}

TEST_F(Disk, full_while_the_optimizer_is_written) {
  Sample sample(2);
  const std::vector<float> large(1 << 18, 1.0F);
  sample.contents.optimizer.push_back({"exp_avg/large", DType::f32, {1 << 18}, large.data()});
  // From "not even the first block" to "all but the last".
  for (const rlim_t bytes : {300U, 3000U, 1U << 16, 1U << 19, (1U << 20) + 2000U}) {
    std::string failure;
    {
      const FileSizeLimit limit(bytes);
      failure = failure_of([&] { write(save_, 2, sample.contents); });
    }
    EXPECT_TRUE(failure.ends_with("optimizer.h5: File too large") ||
                failure.ends_with("safetensors: File too large"))
        << failure;
    expect_as_before();
  }
}

TEST_F(Disk, full_while_a_checkpoint_of_the_same_step_is_replaced) {
  const Sample sample(2, 1 << 18);
  {
    const FileSizeLimit limit(std::size_t{1} << 19);
    EXPECT_NE(failure_of([&] { write(save_, 1, sample.contents); }), "no failure");
  }
  expect_as_before();
}

TEST_F(Disk, read_only_directory) {
  const bool root = ::geteuid() == 0;
  fs::permissions(directory_.path(), fs::perms(0755));
  fs::permissions(save_, fs::perms(0555));
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const std::string failure = failure_of([&] { write(save_, 2, Sample(2).contents); });
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(save_, fs::perms(0755));
  EXPECT_NE(failure.find("cannot make the directory"), std::string::npos) << failure;
  EXPECT_NE(failure.find("Permission denied"), std::string::npos) << failure;
  expect_as_before();
}

TEST_F(Disk, really_full) {
  const fs::path small = directory_.path() / "small";
  fs::create_directory(small);
  if (::mount("none", small.c_str(), "tmpfs", 0, "size=256k") != 0) {
    // Not root: the limits above have to do, and they must be in force here.
    const FileSizeLimit limit(100);
    EXPECT_NE(failure_of([&] { write(small, 1, Sample(1).contents); }), "no failure");
    return;
  }
  write(small, 1, Sample(1).contents);
  // One that is too large from the start, then small ones until there is no room left.
  EXPECT_NE(failure_of([&] { write(small, 2, Sample(2, 1 << 18).contents); }).find("are free in"),
            std::string::npos);
  int step = 2;
  std::string failure = "no failure";
  for (; step < 1000 && failure == "no failure"; ++step) {
    failure = failure_of([&] { write(small, step, Sample(step, 3000).contents); });
  }
  EXPECT_LT(step, 1000);
  EXPECT_EQ(failure.find("wrong code"), std::string::npos) << failure;
  EXPECT_EQ(value_of(*newest_good(small), 3000), step - 2);
  EXPECT_EQ(names_in(small).size(), static_cast<std::size_t>(step - 1))
      << "latest and steps 1 to " << step - 2;
  // Less than the layout of optimizer.h5 needs, so that it is HDF5 itself that meets the full disk.
  const std::vector<float> number(1);
  std::vector<io::SafetensorsEntry> many;
  for (int i = 0; i < 300; ++i)
    many.push_back({fmt::format("exp_avg/{}", i), DType::f32, {1}, number.data()});
  failure = failure_of([&] { write_optimizer_file(small / "o.h5", many); });
  EXPECT_EQ(failure, "cannot write " + (small / "o.h5").string() + ": No space left on device");
  fs::remove(small / "o.h5");
  ::umount(small.c_str());
}

}  // namespace
}  // namespace motley::checkpoint
