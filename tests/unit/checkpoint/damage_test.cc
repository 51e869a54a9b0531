// Every way in which one file of a checkpoint can differ from what was written is noticed.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/directory.h"
#include "checkpoint/manifest.h"
#include "sample.h"
#include "support/paths.h"

namespace motley::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::failure_of;
using test::names_in;
using test::Sample;

class Damage : public ::testing::Test {
 protected:
  Damage() : checkpoint_(write(directory_.path(), 1, Sample(3).contents)) {}

  std::string content(const std::string& name) const {
    return read_file(checkpoint_ / name, ExitCode::input);
  }
  void put(const std::string& name, const std::string& content) const {
    std::FILE* file =
        std::fopen((checkpoint_ / name).c_str(), "wb");  // without the fsync of write_file: thousands
    std::fwrite(content.data(), 1, content.size(), file);
    std::fclose(file);
  }
  std::string problem() const {
    return failure_of([this] { verify(checkpoint_); });
  }

  motley::test::TemporaryDirectory directory_;
  fs::path checkpoint_;
};

TEST_F(Damage, none_verifies_also_with_a_file_that_nobody_knows) {
  EXPECT_EQ(problem(), "no failure");
  put("notes.txt", "the good one");
  fs::create_directory(checkpoint_ / "plots");
  EXPECT_EQ(problem(), "no failure");
}

TEST_F(Damage, a_flipped_bit_in_any_byte_of_any_file) {
  for (const std::string& name : names_in(checkpoint_)) {
    const std::string good = content(name);
    // Each byte of the small files, and of the large one (HDF5 is mostly zeros) every seventh.
    const std::size_t stride = good.size() > 4096 ? 7 : 1;
    for (std::size_t i = 0; i < good.size(); i += stride) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
      put(name, bad);
      ASSERT_NE(problem(), "no failure") << name << " at byte " << i;
    }
    put(name, good);
    ASSERT_EQ(problem(), "no failure");
  }
}

TEST_F(Damage, any_file_shorter_longer_missing_or_no_file_at_all) {
  for (const std::string& name : names_in(checkpoint_)) {
    const std::string good = content(name);
    const std::string path = (checkpoint_ / name).string();
    for (const std::size_t size : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
      put(name, good.substr(0, size));
      EXPECT_NE(problem(), "no failure") << name << " of " << size << " bytes";
    }
    put(name, good + '\0');
    EXPECT_NE(problem(), "no failure") << name << " with a byte more";
    fs::remove(path);
    const std::string missing = problem();
    EXPECT_EQ(missing, name == "MANIFEST.json"
                           ? checkpoint_.string() + " is not a complete checkpoint: it has no MANIFEST.json"
                           : path + " is missing, though MANIFEST.json lists it");
    fs::create_directory(path);
    EXPECT_NE(problem(), "no failure") << name << " as a directory";
    fs::remove(path);
    put(name, good);
    ASSERT_EQ(problem(), "no failure");
  }
}

TEST_F(Damage, two_files_of_the_same_length_swapped) {
  Sample sample(3);
  sample.contents.extra_files = {{"a.txt", "abcd"}, {"b.txt", "bcda"}};
  checkpoint_ = write(directory_.path(), 2, sample.contents);
  fs::rename(checkpoint_ / "a.txt", checkpoint_ / "c.txt");
  fs::rename(checkpoint_ / "b.txt", checkpoint_ / "a.txt");
  fs::rename(checkpoint_ / "c.txt", checkpoint_ / "b.txt");
  EXPECT_EQ(problem(), (checkpoint_ / "a.txt").string() +
                           " is damaged: its content does not match the hash in MANIFEST.json");
}

TEST_F(Damage, one_file_can_be_looked_at_alone) {
  Sample sample(3);
  sample.contents.extra_files = {{"a.txt", "abcd"}, {"b.txt", "bcda"}};
  checkpoint_ = write(directory_.path(), 2, sample.contents);
  put("a.txt", "abce");
  EXPECT_FALSE(is_intact(checkpoint_, "a.txt"));
  EXPECT_TRUE(is_intact(checkpoint_, "b.txt"));
  put("a.txt", "abcd");
  EXPECT_TRUE(is_intact(checkpoint_, "a.txt"));
  EXPECT_FALSE(is_intact(checkpoint_, "c.txt"));
  put("MANIFEST.json", "{}");
  EXPECT_FALSE(is_intact(checkpoint_, "b.txt"));
}

TEST_F(Damage, a_file_of_another_checkpoint) {
  const fs::path other = write(directory_.path(), 2, Sample(4).contents);
  for (const char* name : {"model.safetensors", "optimizer.h5", "trainer.json", "MANIFEST.json"}) {
    const std::string good = content(name);
    put(name, read_file(other / name, ExitCode::input));
    EXPECT_NE(problem(), "no failure") << name;
    put(name, good);
  }
}

TEST_F(Damage, a_manifest_of_a_later_format_is_told_from_a_broken_one) {
  std::string manifest = content("MANIFEST.json");
  manifest.replace(manifest.find("checkpoint 1"), 12, "checkpoint 2");
  put("MANIFEST.json", manifest);
  EXPECT_EQ(problem(),
            (checkpoint_ / "MANIFEST.json").string() +
                " has the format \"motley checkpoint 2\"; this program knows \"motley checkpoint 1\"");
}

TEST_F(Damage, is_noticed_when_a_checkpoint_is_opened) {
  put("trainer.json", "{}");
  EXPECT_NE(failure_of([this] { Reader reader(checkpoint_); }), "no failure");
}

}  // namespace
}  // namespace motley::checkpoint
