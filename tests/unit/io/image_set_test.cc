#include "io/image_set.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"
#include "io/hdf5_rows.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

using test::expect_error;
using test::expect_error_with;
using test::Hdf5File;

class ImageSetTest : public ::testing::Test {
 protected:
  std::string path(const char* name = "set.h5") const { return (directory_.path() / name).string(); }

  void expect_input_error(const std::string& sentence) const {
    expect_error(ExitCode::input, sentence, [this] { describe_image_set(path()); });
  }

  test::TemporaryDirectory directory_;
};

std::vector<std::uint8_t> bytes(std::size_t count) {
  return std::vector<std::uint8_t>(count, 1);
}

void add_u8(Hdf5File& file, const char* name, const std::vector<hsize_t>& extents) {
  std::size_t count = 1;
  for (const hsize_t extent : extents) count *= extent;
  file.add(name, extents, H5T_STD_U8LE, H5T_NATIVE_UINT8, bytes(count).data());
}

// --- Every sentence of describe_image_set -----------------------------------------------------------------

TEST_F(ImageSetTest, a_missing_file_is_said) {
  expect_input_error("cannot open " + path() + ": No such file or directory");
}

TEST_F(ImageSetTest, a_directory_is_said) {
  std::filesystem::create_directory(path());
  expect_input_error(path() + " is a directory; an HDF5 file was expected");
}

TEST_F(ImageSetTest, a_pipe_is_said_and_not_waited_for) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  expect_input_error(path() + " is not a regular file; an HDF5 file was expected");
}

TEST_F(ImageSetTest, a_file_that_may_not_be_read_is_said) {
  { Hdf5File file(path()); }
  std::filesystem::permissions(directory_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(path(), std::filesystem::perms::none);
  // The superuser may read anything: be somebody else for a moment.
  const bool superuser = ::geteuid() == 0;
  if (superuser) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  expect_input_error("cannot open " + path() + ": Permission denied");
  if (superuser) {
    ASSERT_EQ(::seteuid(0), 0);
  }
}

TEST_F(ImageSetTest, what_is_not_hdf5_is_said_with_what_it_looks_like) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> cases[] = {
      {"", "it is empty"},
      {"\x1f\x8b\x08\0"s, "it is gzip-compressed"},
      {"\0\0\x08\x03\0\0\0\1"s, "it looks like an IDX file, which `motley data idx` converts"},
      {"PK\x03\x04", "it looks like a zip archive"},
      {"\x93NUMPY\1\0"s, "it looks like a NumPy array"},
      {"label,pixel\n", "it does not begin with the HDF5 signature"},
  };
  for (const auto& [content, hint] : cases) {
    write_file(path(), content, ExitCode::input);
    expect_input_error(path() + " is not an HDF5 file: " + hint);
  }
}

TEST_F(ImageSetTest, a_file_cut_short_is_said) {
  {
    Hdf5File file(path());
    add_u8(file, "images", {100, 10, 10, 1});
    add_u8(file, "labels", {100});
  }
  std::filesystem::resize_file(path(), 5000);
  expect_error_with(ExitCode::input, {path() + ": HDF5 cannot open it: truncated file: eof = 5000, "},
                    [this] { describe_image_set(path()); });
}

TEST_F(ImageSetTest, a_missing_data_set_is_said_with_what_is_there) {
  {
    Hdf5File file(path());
    add_u8(file, "pixels", {2, 2});
    add_u8(file, "labels", {2});
    file.add_group("extra");
  }
  expect_input_error(path() + " has no data set `images`; it has the group `extra`, `labels` and `pixels`");
  {
    Hdf5File file(path());
    add_u8(file, "images", {2, 2, 2, 1});
  }
  expect_input_error(path() + " has no data set `labels`; it has `images`");
  { Hdf5File file(path()); }
  expect_input_error(path() + " has no data set `images`; it has nothing");
}

TEST_F(ImageSetTest, a_group_in_place_of_a_data_set_is_said) {
  {
    Hdf5File file(path());
    file.add_group("images");
  }
  expect_input_error(path() + ": `images` is a group; a data set was expected");
}

TEST_F(ImageSetTest, a_wrong_type_is_said) {
  const std::vector<float> floats(16);
  const std::vector<std::uint16_t> words(16);
  {
    Hdf5File file(path());
    file.add("images", {4, 2, 2, 1}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, floats.data());
    add_u8(file, "labels", {4});
  }
  expect_input_error(path() + ": data set `images` holds float32; expected uint8");
  {
    Hdf5File file(path());
    file.add("images", {4, 2, 2, 1}, H5T_STD_U16BE, H5T_NATIVE_UINT16, words.data());
    add_u8(file, "labels", {4});
  }
  expect_input_error(path() + ": data set `images` holds uint16 (big-endian); expected uint8");
  {
    Hdf5File file(path());
    add_u8(file, "images", {4, 2, 2, 1});
    file.add("labels", {4}, H5T_IEEE_F64LE, H5T_NATIVE_FLOAT, floats.data());
  }
  expect_input_error(path() + ": data set `labels` holds float64; expected an integer type");
}

TEST_F(ImageSetTest, a_wrong_number_of_dimensions_is_said) {
  {
    Hdf5File file(path());
    add_u8(file, "images", {4, 2, 3});
    add_u8(file, "labels", {4});
  }
  expect_input_error(
      path() +
      ": data set `images` has the shape [4, 2, 3]; expected four dimensions [samples, height, width, "
      "channels]");
  {
    Hdf5File file(path());
    add_u8(file, "images", {4, 2, 3, 1});
    add_u8(file, "labels", {4, 1});
  }
  expect_input_error(path() + ": data set `labels` has the shape [4, 1]; expected one dimension [samples]");
}

TEST_F(ImageSetTest, images_without_pixels_are_said) {
  {
    Hdf5File file(path());
    file.add("images", {4, 0, 3, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
    add_u8(file, "labels", {4});
  }
  expect_input_error(
      path() +
      ": data set `images` has the shape [4, 0, 3, 1]; expected images of at least one byte and at "
      "most 1 GiB");
}

TEST_F(ImageSetTest, different_lengths_are_said) {
  {
    Hdf5File file(path());
    add_u8(file, "images", {4, 2, 3, 1});
    add_u8(file, "labels", {5});
  }
  expect_input_error(path() + ": `images` has 4 samples and `labels` has 5; expected as many");
}

TEST_F(ImageSetTest, no_samples_are_said) {
  {
    Hdf5File file(path());
    file.add("images", {0, 2, 3, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
    file.add("labels", {0}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
  }
  expect_input_error(path() + ": data sets `images` and `labels` are empty; expected at least one sample");
}

TEST_F(ImageSetTest, data_that_was_never_written_is_said) {
  constexpr hsize_t many = 1ULL << 40;
  {
    Hdf5File file(path());
    file.add("images", {4, 2, 3, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
    add_u8(file, "labels", {4});
  }
  expect_input_error(path() + ": `images` has no data: it was created but never written");
  {
    Hdf5File file(path());
    add_u8(file, "images", {4, 2, 3, 1});
    file.add("labels", {4}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr);
  }
  expect_input_error(path() + ": `labels` has no data: it was created but never written");
  {
    Hdf5File file(path());
    file.add("images", {many, 28, 28, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr, {{1024, 28, 28, 1}});
    file.add("labels", {many}, H5T_STD_U8LE, H5T_NATIVE_UINT8, nullptr, {{1 << 20}});
  }
  expect_input_error(path() + ": `images` has no data: it was created but never written");
}

TEST_F(ImageSetTest, a_compression_that_hdf5_lacks_is_said) {
  const std::string file = test::source_path("golden/io_lzf.h5").string();
  expect_error(
      ExitCode::input,
      file +
          ": data set `images` is compressed with lzf, which the HDF5 library of this machine cannot undo; "
          "expected no compression or gzip",
      [&] { describe_image_set(file); });
}

// --- What is packed ---------------------------------------------------------------------------------------

TEST_F(ImageSetTest, labels_may_be_of_any_integer_type_and_only_little_endian_ones_are_packed) {
  const std::vector<std::int64_t> labels = {0, 1, 2, 3};
  const std::tuple<hid_t, DType, bool> types[] = {
      {H5T_STD_I8LE, DType::i8, true},    {H5T_STD_U8BE, DType::u8, true},
      {H5T_STD_I16LE, DType::i16, true},  {H5T_STD_U16BE, DType::u16, false},
      {H5T_STD_I32BE, DType::i32, false}, {H5T_STD_U32LE, DType::u32, true},
      {H5T_STD_I64BE, DType::i64, false}, {H5T_STD_U64LE, DType::u64, true}};
  for (const auto& [type, dtype, packed] : types) {
    {
      Hdf5File file(path());
      add_u8(file, "images", {4, 2, 3, 1});
      file.add("labels", {4}, type, H5T_NATIVE_INT64, labels.data());
    }
    const ImageSet set = describe_image_set(path());
    EXPECT_EQ(set.source.fields[1].dtype, dtype);
    EXPECT_EQ(set.source.fields[1].packed, packed) << name_of(dtype);
    check_labels(set, 0, 4, 4);
  }
}

TEST_F(ImageSetTest, a_user_block_is_counted_into_the_offset) {
  const auto images = test::pattern_rows(4, 6);
  {
    Hdf5File file(path(), 1024);
    file.add("images", {4, 2, 3, 1}, H5T_STD_U8LE, H5T_NATIVE_UINT8, images.data());
    add_u8(file, "labels", {4});
  }
  const ImageSet set = describe_image_set(path());
  ASSERT_TRUE(set.source.packed());
  const std::string file = read_file(path(), ExitCode::input);
  EXPECT_EQ(std::memcmp(file.data() + set.source.fields[0].file_offset, images.data(), images.size()), 0);
}

TEST_F(ImageSetTest, a_file_by_h5py_with_gzip_and_big_endian_labels_is_read) {
  const std::string file = test::source_path("golden/io_gzip.h5").string();
  const ImageSet set = describe_image_set(file);
  EXPECT_EQ(set.source.rows, 23U);
  EXPECT_EQ(set.source.fields[0].row, (Shape{5, 4, 3}));
  EXPECT_EQ(set.source.fields[1].dtype, DType::i64);
  EXPECT_FALSE(set.source.fields[0].packed);
  EXPECT_FALSE(set.source.fields[1].packed);
  check_labels(set, 0, 23, 5);

  const std::vector<std::uint64_t> asked = {22, 0, 6, 5, 6};
  std::vector<std::uint8_t> images(asked.size() * 60);
  Hdf5Rows(file, set.source.fields[0], 23)
      .read(sort_rows(asked), reinterpret_cast<std::byte*>(images.data()));
  std::vector<std::int64_t> labels(asked.size());
  Hdf5Rows(file, set.source.fields[1], 23)
      .read(sort_rows(asked), reinterpret_cast<std::byte*>(labels.data()));
  for (std::size_t i = 0; i < asked.size(); ++i) {
    for (std::size_t j = 0; j < 60; ++j) EXPECT_EQ(images[i * 60 + j], (asked[i] * 60 + j) * 37 % 251);
    EXPECT_EQ(labels[i], static_cast<std::int64_t>(asked[i] * 3 % 5));
  }
}

TEST_F(ImageSetTest, another_file_than_the_one_described_is_said) {
  const std::string file = test::source_path("golden/io_gzip.h5").string();
  const Field field = describe_image_set(file).source.fields[0];
  expect_error(
      ExitCode::input,
      file +
          ", data set `images` is uint8 [23, 5, 4, 3] here; 24 rows of uint8 [5, 4, 3] were expected: is it "
          "the same file on all machines?",
      [&] { Hdf5Rows(file, field, 24); });
}

// --- Labels -----------------------------------------------------------------------------------------------

TEST_F(ImageSetTest, a_label_out_of_range_is_said_with_its_row) {
  const std::vector<std::int64_t> labels = {0, 9, 4, 10, -1, 3};
  {
    Hdf5File file(path());
    add_u8(file, "images", {6, 1, 1, 1});
    file.add("labels", {6}, H5T_STD_I16BE, H5T_NATIVE_INT64, labels.data());
  }
  const ImageSet set = describe_image_set(path());
  check_labels(set, 0, 3, 10);
  check_labels(set, 5, 1, 10);
  check_labels(set, 6, 0, 10);
  expect_error(ExitCode::input, path() + ", data set `labels`, row 3: label 10; expected 0 to 9",
               [&] { check_labels(set, 0, 6, 10); });
  expect_error(ExitCode::input, path() + ", data set `labels`, row 4: label -1; expected 0 to 10",
               [&] { check_labels(set, 2, 4, 11); });
  EXPECT_THROW(check_labels(set, 5, 2, 10), Error);
}

TEST_F(ImageSetTest, labels_too_large_for_int64_are_shown_as_they_are) {
  const std::vector<std::uint64_t> labels = {18446744073709551615ULL};
  {
    Hdf5File file(path());
    add_u8(file, "images", {1, 1, 1, 1});
    file.add("labels", {1}, H5T_STD_U64LE, H5T_NATIVE_UINT64, labels.data());
  }
  const ImageSet set = describe_image_set(path());
  expect_error(ExitCode::input,
               path() + ", data set `labels`, row 0: label 18446744073709551615; expected 0 to 9",
               [&] { check_labels(set, 0, 1, 10); });
}

TEST_F(ImageSetTest, labels_are_checked_beyond_the_first_block) {
  constexpr std::uint64_t rows = (1 << 20) + 5;
  std::vector<std::uint8_t> labels(rows, 2);
  labels[rows - 2] = 77;
  ImageSetWriter writer(path(), rows, 1, 1, 1);
  writer.append(labels.data(), labels.data(), rows);
  writer.finish();
  expect_error(ExitCode::input, path() + ", data set `labels`, row 1048579: label 77; expected 0 to 2",
               [this] { check_labels(describe_image_set(path()), 0, rows, 3); });
}

TEST_F(ImageSetTest, the_writer_leaves_pipes_sockets_and_devices_where_they_are) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::mknod(path("socket").c_str(), S_IFSOCK | 0600, 0), 0);
  std::filesystem::create_symlink("/dev/full", path("device"));
  for (const char* name : {"pipe", "socket", "device"}) {
    const auto before = std::filesystem::symlink_status(path(name)).type();
    expect_error(ExitCode::input, "cannot write " + path(name) + ": it is there and not a regular file", [&] {
      ImageSetWriter writer(path(name), 1, 1, 1, 1);
      writer.append(bytes(1).data(), bytes(1).data(), 1);
      writer.finish();
    });
    EXPECT_EQ(std::filesystem::symlink_status(path(name)).type(), before) << name;
  }
}

TEST(RowSource, survives_json_with_any_path) {
  RowSource source{"/data/\xff \"x\".h5", 1ULL << 40, {}};
  source.fields.push_back({"images", DType::u8, {28, 28, 1}, true, 1ULL << 41});
  source.fields.push_back({"labels", DType::i64, {}, false, 0, "in another file (/\xfe.h5)"});
  const RowSource copy = RowSource::from_json(source.to_json());
  EXPECT_EQ(copy.path, source.path);
  EXPECT_EQ(copy.rows, source.rows);
  ASSERT_EQ(copy.fields.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(copy.fields[i].name, source.fields[i].name);
    EXPECT_EQ(copy.fields[i].dtype, source.fields[i].dtype);
    EXPECT_EQ(copy.fields[i].row, source.fields[i].row);
    EXPECT_EQ(copy.fields[i].packed, source.fields[i].packed);
    EXPECT_EQ(copy.fields[i].file_offset, source.fields[i].file_offset);
    EXPECT_EQ(copy.fields[i].why_unpacked, source.fields[i].why_unpacked);
  }
  EXPECT_THROW(RowSource::from_json("{}"), Error);
}

}  // namespace
}  // namespace motley::io
