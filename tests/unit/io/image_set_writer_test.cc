#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"
#include "io/image_set.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

using test::expect_error;
using test::expect_error_with;

class ImageSetWriterTest : public ::testing::Test {
 protected:
  std::string path(const char* name = "set.h5") const { return (directory_.path() / name).string(); }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

  test::TemporaryDirectory directory_;
};

std::vector<std::uint8_t> bytes(std::size_t count) {
  return std::vector<std::uint8_t>(count, 1);
}

TEST_F(ImageSetWriterTest, what_the_writer_writes_is_described_and_packed) {
  const auto images = test::pattern_rows(10, 24);
  const std::vector<std::uint8_t> labels = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  ImageSetWriter writer(path(), 10, 4, 3, 2);
  writer.append(images.data(), labels.data(), 3);
  writer.append(images.data() + 3 * 24, labels.data() + 3, 7);
  writer.append(nullptr, nullptr, 0);
  writer.finish();
  EXPECT_EQ(files(), std::vector<std::string>{"set.h5"});

  const ImageSet set = describe_image_set(path());
  EXPECT_EQ(set.source.path, path());
  EXPECT_EQ(set.source.rows, 10U);
  EXPECT_EQ(set.height, 4);
  EXPECT_EQ(set.width, 3);
  EXPECT_EQ(set.channels, 2);
  EXPECT_TRUE(set.source.packed());
  ASSERT_EQ(set.source.fields.size(), 2U);
  EXPECT_EQ(set.source.fields[0].name, "images");
  EXPECT_EQ(set.source.fields[0].row, (Shape{4, 3, 2}));
  EXPECT_EQ(set.source.fields[1].name, "labels");
  EXPECT_EQ(set.source.fields[1].row.rank(), 0);
  EXPECT_EQ(set.source.fields[1].row_bytes(), 1U);

  const std::string file = read_file(path(), ExitCode::input);
  EXPECT_EQ(std::memcmp(file.data() + set.source.fields[0].file_offset, images.data(), images.size()), 0);
  EXPECT_EQ(std::memcmp(file.data() + set.source.fields[1].file_offset, labels.data(), labels.size()), 0);
}

TEST_F(ImageSetWriterTest, the_same_images_give_the_same_bytes) {
  for (const char* name : {"a.h5", "b.h5"}) {
    ImageSetWriter writer(path(name), 5, 2, 2, 1);
    writer.append(test::pattern_rows(5, 4).data(), bytes(5).data(), 5);
    writer.finish();
  }
  EXPECT_EQ(read_file(path("a.h5"), ExitCode::input), read_file(path("b.h5"), ExitCode::input));
}

TEST_F(ImageSetWriterTest, a_writer_that_is_not_finished_leaves_nothing) {
  {
    ImageSetWriter writer(path(), 5, 2, 2, 1);
    writer.append(bytes(8).data(), bytes(2).data(), 2);
    EXPECT_EQ(files().size(), 1U);
    EXPECT_FALSE(std::filesystem::exists(path()));
    EXPECT_THROW(writer.append(bytes(16).data(), bytes(4).data(), 4), Error);  // more than announced
    EXPECT_THROW(writer.finish(), Error);                                      // less than announced
  }
  EXPECT_TRUE(files().empty());
}

// Stands for a disk that fills up: writes beyond `bytes` of a file fail.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    struct rlimit tight = old_;
    tight.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &tight);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit old_ {};
  void (*old_handler_)(int);
};

TEST_F(ImageSetWriterTest, a_full_disk_is_said_and_leaves_nothing) {
  const std::vector<std::string> sentence = {"cannot write " + path() + ".tmp-", ": File too large"};
  {
    ImageSetWriter writer(path(), 10, 100, 100, 1);
    const FileSizeLimit limit(64 << 10);
    expect_error_with(ExitCode::input, sentence,
                      [&] { writer.append(bytes(100000).data(), bytes(10).data(), 10); });
  }
  {
    const FileSizeLimit limit(1000);
    expect_error_with(ExitCode::input, sentence, [&] { ImageSetWriter(path(), 10, 100, 100, 1); });
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(ImageSetWriterTest, an_output_that_cannot_be_made_is_said_before_any_work) {
  expect_error_with(ExitCode::input,
                    {"cannot create " + path("no/set.h5") + ".tmp-", "No such file or directory"},
                    [this] { ImageSetWriter(path("no/set.h5"), 1, 1, 1, 1); });
  // A place that cannot even be looked at, as in a directory without permissions (which would not stop root).
  std::filesystem::create_symlink("loop", path("loop"));
  expect_error_with(ExitCode::input,
                    {"cannot create " + path("loop/set.h5") + ".tmp-", "Too many levels of symbolic links"},
                    [this] { ImageSetWriter(path("loop/set.h5"), 1, 1, 1, 1); });
  std::filesystem::create_directory(path());
  expect_error(ExitCode::input, "cannot write " + path() + ": it is a directory",
               [this] { ImageSetWriter(path(), 1, 1, 1, 1); });
}

}  // namespace
}  // namespace motley::io
