#include "io/inspect.h"

#include <gtest/gtest.h>

#include "bert_files.h"
#include "io/image_set.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

// Writes a 7 at the first place of a data set.
void write_one(const std::string& path, const char* name) {
  const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
  const Hdf5Handle dataset(H5Dopen2(file.get(), name, H5P_DEFAULT), H5Dclose);
  const Hdf5Handle space(H5Dget_space(dataset.get()), H5Sclose);
  const std::vector<hsize_t> first(static_cast<std::size_t>(H5Sget_simple_extent_ndims(space.get())), 0);
  const std::vector<hsize_t> one(first.size(), 1);
  const Hdf5Handle memory(H5Screate_simple(static_cast<int>(one.size()), one.data(), nullptr), H5Sclose);
  H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, first.data(), nullptr, one.data(), nullptr);
  const std::uint8_t seven = 7;
  MOTLEY_HDF5(path, ExitCode::internal,
              H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, memory.get(), space.get(), H5P_DEFAULT, &seven));
}

TEST(Inspect, tells_what_a_packed_image_set_holds) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "set.h5").string();
  const std::vector<std::uint8_t> labels = {3, 0, 3, 9, 3};
  ImageSetWriter writer(path, 5, 4, 3, 1);
  writer.append(test::pattern_rows(5, 12).data(), labels.data(), 5);
  writer.finish();
  EXPECT_EQ(inspect(path),
            path +
                "\n"
                "  images: uint8 [5, 4, 3, 1], contiguous, 60 bytes in the file\n"
                "  labels: uint8 [5], contiguous, 5 bytes in the file, values 0 to 9\n"
                "motley reads it as an image set: 5 samples of 4 x 3 pixels x 1 channels, packed\n"
                "  3 labels; samples per label: 0:1 3:3 9:1\n");
}

TEST(Inspect, tells_what_is_compressed_and_what_else_is_there) {
  const std::string path = test::source_path("golden/io_gzip.h5").string();
  const std::string text = inspect(path);
  for (const char* part :
       {"  class_names: string [5], contiguous, ",
        "  images: uint8 [23, 5, 4, 3], chunks of [6, 3, 4, 2], shuffle, gzip 9, ",
        "  labels: int64 (big-endian) [23], contiguous, 184 bytes in the file, values 0 to 4\n",
        "  origin/year: int16 [1], contiguous, 2 bytes in the file, values 2017 to 2017\n",
        "  weights: float32 [23], contiguous, 92 bytes in the file\n",
        "motley reads it as an image set: 23 samples of 5 x 4 pixels x 3 channels, not packed\n",
        "  `images` is chunked and compressed (shuffle, gzip 9), so it is read through HDF5, which is "
        "slower\n",
        "  `labels` is big-endian, so it is read through HDF5, which is slower\n",
        "  5 labels; samples per label: 0:5 1:5 2:4 3:5 4:4\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
  }
}

TEST(Inspect, does_not_read_what_was_never_written) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "set.h5").string();
  constexpr hsize_t many = 1ULL << 40;
  {
    test::Hdf5File file(path);
    file.add("images", {many, 28, 28, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr, {{1024, 28, 28, 1}});
    file.add("labels", {many}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr, {{1 << 20}});
  }
  EXPECT_EQ(inspect(path),
            path +
                "\n"
                "  images: uint8 [1099511627776, 28, 28, 1], chunks of [1024, 28, 28, 1], never written, "
                "0 bytes in the file\n"
                "  labels: uint8 [1099511627776], chunks of [1048576], never written, 0 bytes in the file\n"
                "motley cannot read it as an image set: " +
                path + ": `images` has no data: it was created but never written\n");
}

TEST(Inspect, reads_a_part_of_the_labels_where_there_are_very_many) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "set.h5").string();
  constexpr hsize_t many = 1ULL << 40;
  {
    test::Hdf5File file(path);
    file.add("images", {many, 1, 1, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr, {{1 << 20, 1, 1, 1}});
    file.add("labels", {many}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr, {{1 << 20}});
  }
  for (const char* name : {"images", "labels"}) write_one(path, name);
  const std::string text = inspect(path);
  for (const char* part :
       {", values 0 to 7 among the first 100000000 rows\n",
        "  2 labels among the first 100000000 samples; samples per label: 0:99999999 7:1\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in:\n" << text;
  }
}

TEST(Inspect, says_why_a_file_is_no_image_set) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "set.h5").string();
  {
    test::Hdf5File file(path);
    const std::vector<std::int64_t> ids = {-5, 7};
    file.add("ids", {2}, H5T_STD_I32LE, H5T_NATIVE_INT64, ids.data());
  }
  EXPECT_EQ(inspect(path), path +
                               "\n"
                               "  ids: int32 [2], contiguous, 8 bytes in the file, values -5 to 7\n"
                               "motley cannot read it as an image set: " +
                               path + " has no data set `images`; it has `ids`\n");
  { test::Hdf5File file(path); }
  EXPECT_EQ(inspect(path), path + "\n  no data sets\nmotley cannot read it as an image set: " + path +
                               " has no data set `images`; it has nothing\n");
}

TEST(Inspect, says_what_a_bert_shard_holds) {
  const std::string path = test::source_path("golden/io_bert_shard.h5").string();
  EXPECT_EQ(inspect(path), path + R"(
  input_ids: int32 [300, 32], chunks of [150, 16], gzip 4, 13.9 KiB in the file
  input_mask: int8 [300, 32], chunks of [300, 32], gzip 4, 599 bytes in the file
  masked_lm_ids: int32 [300, 5], chunks of [300, 5], gzip 4, 2.5 KiB in the file
  masked_lm_positions: int32 [300, 5], chunks of [300, 5], gzip 4, 855 bytes in the file
  next_sentence_labels: int8 [300], chunks of [300], gzip 4, 15 bytes in the file, values 0 to 1
  segment_ids: int8 [300, 32], chunks of [300, 32], gzip 4, 359 bytes in the file
motley reads it as a shard of BERT samples: 300 samples of 32 tokens and 5 predictions, decoded in blocks of 300
  token ids 0 to 30521, 16.1 tokens per sample
)");
}

TEST(Inspect, says_what_a_packed_bert_file_holds) {
  const std::string path = test::source_path("golden/io_bert_packed.h5").string();
  EXPECT_EQ(inspect(path), path + R"(
  samples: compound [300], contiguous, 43.7 KiB in the file
motley reads it as packed BERT samples: 300 samples of 32 tokens and 5 predictions, ids uint16
  token ids 0 to 30521, 16.1 tokens per sample
)");
}

TEST(Inspect, says_why_a_file_holds_no_bert_samples) {
  const test::TemporaryDirectory directory;
  const std::string path = (directory.path() / "shard.h5").string();
  test::write_shard(path, {.rows = 3, .without = "segment_ids"});
  EXPECT_TRUE(inspect(path).ends_with("\nmotley cannot read it as BERT samples: " + path +
                                      " has no data set `segment_ids`; it has `input_ids`, `input_mask`, "
                                      "`masked_lm_ids`, `masked_lm_positions` and `next_sentence_labels`\n"))
      << inspect(path);
  test::write_shard(path,
                    {.rows = 3, .spoil = [](const std::string& name, std::vector<std::int64_t>& values) {
                       if (name == "segment_ids") values[20] = -1;
                     }});
  EXPECT_TRUE(inspect(path).ends_with("\nmotley cannot read it as BERT samples: " + path +
                                      ": row 1: `segment_ids`[4] is -1; expected 0 to 255\n"))
      << inspect(path);
}

TEST(Inspect, a_file_that_cannot_be_opened_is_an_input_error) {
  test::expect_error(ExitCode::input, "cannot open /nowhere.h5: No such file or directory",
                     [] { inspect("/nowhere.h5"); });
}

}  // namespace
}  // namespace motley::io
