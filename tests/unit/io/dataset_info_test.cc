// Where the bytes of a data set lie. The rows that HDF5 reads are what every other way of reading must give.
#include "io/dataset_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/files.h"
#include "io/hdf5_rows.h"
#include "io/image_set.h"
#include "support/paths.h"
#include "test_files.h"

namespace motley::io {
namespace {

using test::Hdf5File;

constexpr std::uint64_t rows = 6, row_bytes = 2 * 3;
const std::vector<hsize_t> extents = {rows, 2, 3, 1};

class DatasetInfoTest : public ::testing::Test {
 protected:
  std::string path(const char* name = "set.h5") const { return (directory_.path() / name).string(); }

  void write_images(const std::string& file_path, const char* name, bool with_labels = true) const {
    Hdf5File file(file_path);
    file.add(name, extents, H5T_STD_U8LE, H5T_NATIVE_UINT8, images_.data());
    if (with_labels) file.add("labels", {rows}, H5T_STD_U8LE, H5T_NATIVE_UINT8, labels_.data());
  }

  // A file with `labels`, open for writing, in which `make` makes `images`.
  template <class Make>
  void make_set(const Make& make) const {
    Hdf5File(path()).add("labels", {rows}, H5T_STD_U8LE, H5T_NATIVE_UINT8, labels_.data());
    const Hdf5Handle file(
        MOTLEY_HDF5(path(), ExitCode::internal, H5Fopen(path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT)),
        H5Fclose);
    make(file.get());
  }

  // Makes `images` with the creation properties that `set` sets, and writes it.
  template <class Set>
  void make_with(const Set& set) const {
    make_set([&](hid_t file) {
      const Hdf5Handle space(H5Screate_simple(4, extents.data(), nullptr), H5Sclose);
      const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
      set(creation.get());
      const Hdf5Handle dataset(MOTLEY_HDF5(path(), ExitCode::internal,
                                           H5Dcreate2(file, "images", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                                      creation.get(), H5P_DEFAULT)),
                               H5Dclose);
      MOTLEY_HDF5(path(), ExitCode::internal,
                  H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, images_.data()));
    });
  }

  void expect_packed() const {
    const Field images = describe_image_set(path()).source.fields[0];
    ASSERT_TRUE(images.packed);
    const std::string file = read_file(path(), ExitCode::input);
    ASSERT_LE(images.file_offset + images_.size(), file.size());
    EXPECT_EQ(std::memcmp(file.data() + images.file_offset, images_.data(), images_.size()), 0);
  }

  void expect_read_through_hdf5(const std::string& why) const {
    const Field images = describe_image_set(path()).source.fields[0];
    EXPECT_FALSE(images.packed);
    EXPECT_EQ(images.why_unpacked, why);
    std::vector<std::uint8_t> got(images_.size());
    Hdf5Rows(path(), images, rows).read_range(0, rows, reinterpret_cast<std::byte*>(got.data()));
    EXPECT_EQ(got, images_);
  }

  const std::vector<std::uint8_t> images_ = test::pattern_rows(rows, row_bytes);
  const std::vector<std::uint8_t> labels_ = {0, 1, 2, 3, 4, 5};
  test::TemporaryDirectory directory_;
};

TEST_F(DatasetInfoTest, images_in_another_file_are_read_from_there) {
  // What lies in the other file at some offset is something else in this one.
  write_images(path("other.h5"), "images");
  make_set([&](hid_t file) {
    MOTLEY_HDF5(path(), ExitCode::internal,
                H5Lcreate_external("other.h5", "images", file, "images", H5P_DEFAULT, H5P_DEFAULT));
  });
  expect_read_through_hdf5("in another file (" + path("other.h5") + ")");
}

TEST_F(DatasetInfoTest, labels_in_another_file_are_read_from_there) {
  write_images(path("other.h5"), "images");
  {
    write_images(path(), "images", false);
    const Hdf5Handle file(H5Fopen(path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    MOTLEY_HDF5(path(), ExitCode::internal,
                H5Lcreate_external("other.h5", "labels", file.get(), "labels", H5P_DEFAULT, H5P_DEFAULT));
  }
  expect_packed();
  const ImageSet set = describe_image_set(path());
  EXPECT_FALSE(set.source.fields[1].packed);
  check_labels(set, 0, rows, rows);
  std::vector<std::uint8_t> got(rows);
  Hdf5Rows(path(), set.source.fields[1], rows).read_range(0, rows, reinterpret_cast<std::byte*>(got.data()));
  EXPECT_EQ(got, labels_);
}

TEST_F(DatasetInfoTest, a_link_through_a_link_into_another_file_counts_as_such) {
  write_images(path("other.h5"), "images");
  make_set([&](hid_t file) {
    H5Lcreate_external("other.h5", "/", file, "there", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/there/images", file, "images", H5P_DEFAULT, H5P_DEFAULT);
  });
  expect_read_through_hdf5("in another file (" + path("other.h5") + ")");
}

TEST_F(DatasetInfoTest, a_link_to_a_file_that_is_not_there_is_said) {
  make_set([&](hid_t file) {
    H5Lcreate_external("other.h5", "images", file, "images", H5P_DEFAULT, H5P_DEFAULT);
  });
  test::expect_error(ExitCode::input,
                     path() +
                         ", data set `images`: HDF5 cannot open it: unable to open external file, "
                         "external link file name = 'other.h5'",
                     [this] { describe_image_set(path()); });
}

TEST_F(DatasetInfoTest, data_with_a_wrong_checksum_is_said) {
  make_with([](hid_t creation) {
    H5Pset_chunk(creation, 4, extents.data());
    H5Pset_fletcher32(creation);
  });
  std::string file = read_file(path(), ExitCode::input);
  const std::size_t at = file.find(std::string(images_.begin(), images_.end()));
  ASSERT_NE(at, std::string::npos);
  file[at] = static_cast<char>(~file[at]);
  test::write_bytes(path(), file);
  const Field images = describe_image_set(path()).source.fields[0];
  std::vector<std::byte> got(images_.size());
  test::expect_error_with(ExitCode::input,
                          {path() + ", data set `images`, rows 0 to 5: HDF5 cannot read it: "},
                          [&] { Hdf5Rows(path(), images, rows).read_range(0, rows, got.data()); });
}

TEST_F(DatasetInfoTest, links_within_the_file_stay_packed) {
  const char* const kinds[] = {"soft", "hard"};
  for (const std::string kind : kinds) {
    write_images(path(), "pixels");
    {
      const Hdf5Handle file(H5Fopen(path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
      if (kind == "soft") H5Lcreate_soft("/pixels", file.get(), "images", H5P_DEFAULT, H5P_DEFAULT);
      if (kind == "hard")
        H5Lcreate_hard(file.get(), "pixels", file.get(), "images", H5P_DEFAULT, H5P_DEFAULT);
    }
    SCOPED_TRACE(kind);
    expect_packed();
  }
}

TEST_F(DatasetInfoTest, user_blocks_count_into_the_offset) {
  for (const hsize_t bytes : {512, 1024, 4096}) {
    {
      Hdf5File file(path(), bytes);
      file.add("images", extents, H5T_STD_U8LE, H5T_NATIVE_UINT8, images_.data());
      file.add("labels", {rows}, H5T_STD_U8LE, H5T_NATIVE_UINT8, labels_.data());
    }
    expect_packed();
  }
}

TEST_F(DatasetInfoTest, a_user_block_put_before_a_finished_file_counts_into_the_offset) {
  write_images(path(), "images");
  const std::string file = read_file(path(), ExitCode::input);
  test::write_bytes(path(), std::string(512, '#') + file);
  expect_packed();
}

TEST_F(DatasetInfoTest, external_storage_is_read_through_hdf5) {
  // A relative name is looked for in the working directory.
  make_with([&](hid_t creation) { H5Pset_external(creation, path("raw.bin").c_str(), 0, images_.size()); });
  ASSERT_EQ(std::filesystem::file_size(path("raw.bin")), images_.size());
  expect_read_through_hdf5("stored in external files");
}

TEST_F(DatasetInfoTest, compact_storage_is_read_through_hdf5) {
  make_with([](hid_t creation) { H5Pset_layout(creation, H5D_COMPACT); });
  expect_read_through_hdf5("compact (inside the object header)");
}

TEST_F(DatasetInfoTest, one_chunk_of_everything_is_read_through_hdf5) {
  make_with([](hid_t creation) { H5Pset_chunk(creation, 4, extents.data()); });
  expect_read_through_hdf5("chunked");
}

TEST_F(DatasetInfoTest, filters_are_named) {
  make_with([](hid_t creation) {
    H5Pset_chunk(creation, 4, extents.data());
    H5Pset_fletcher32(creation);
  });
  expect_read_through_hdf5("chunked (checksum)");
  make_with([](hid_t creation) {
    H5Pset_chunk(creation, 4, extents.data());
    H5Pset_shuffle(creation);
    H5Pset_deflate(creation, 4);
  });
  expect_read_through_hdf5("chunked and compressed (shuffle, gzip 4)");
}

TEST_F(DatasetInfoTest, a_virtual_data_set_is_read_through_hdf5) {
  write_images(path("other.h5"), "pixels");
  make_set([&](hid_t file) {
    const Hdf5Handle space(H5Screate_simple(4, extents.data(), nullptr), H5Sclose);
    const Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_virtual(creation.get(), space.get(), path("other.h5").c_str(), "pixels", space.get());
    const Hdf5Handle dataset(MOTLEY_HDF5(path(), ExitCode::internal,
                                         H5Dcreate2(file, "images", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                                    creation.get(), H5P_DEFAULT)),
                             H5Dclose);
  });
  expect_read_through_hdf5("virtual (assembled from other data sets)");
}

// The raw data of such files lie in other files than the one that is opened.
TEST_F(DatasetInfoTest, one_part_of_a_split_or_family_file_is_never_packed) {
  for (const bool split : {true, false}) {
    SCOPED_TRACE(split ? "split" : "family");
    const std::string name = split ? path("set") : path("set-%d.h5");
    const std::string part = split ? path("set-m.h5") : path("set-0.h5");
    {
      const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
      if (split) {
        H5Pset_fapl_split(access.get(), "-m.h5", H5P_DEFAULT, "-r.h5", H5P_DEFAULT);
      } else {
        H5Pset_fapl_family(access.get(), 2048, H5P_DEFAULT);
      }
      const Hdf5Handle file(MOTLEY_HDF5(name, ExitCode::internal,
                                        H5Fcreate(name.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
                            H5Fclose);
      const hsize_t many[] = {1000, 2, 3, 1}, labels = 1000;
      const std::vector<std::uint8_t> data(6000, 7);
      for (const bool images : {true, false}) {
        const Hdf5Handle space(
            images ? H5Screate_simple(4, many, nullptr) : H5Screate_simple(1, &labels, nullptr), H5Sclose);
        const Hdf5Handle dataset(
            MOTLEY_HDF5(name, ExitCode::internal,
                        H5Dcreate2(file.get(), images ? "images" : "labels", H5T_STD_U8LE, space.get(),
                                   H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
            H5Dclose);
        MOTLEY_HDF5(name, ExitCode::internal,
                    H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()));
      }
    }
    ASSERT_TRUE(std::filesystem::exists(part));
    try {
      EXPECT_FALSE(describe_image_set(part).source.packed());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::input) << error.what();
    }
  }
}

TEST_F(DatasetInfoTest, images_of_types_that_only_look_like_uint8_are_refused) {
  const Hdf5Handle opaque(H5Tcreate(H5T_OPAQUE, 1), H5Tclose);
  const Hdf5Handle boolean(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
  const std::int8_t yes = 1, no = 0;
  H5Tenum_insert(boolean.get(), "FALSE", &no);
  H5Tenum_insert(boolean.get(), "TRUE", &yes);
  const std::pair<hid_t, const char*> types[] = {
      {boolean.get(), "enumeration or boolean"}, {H5T_STD_B8LE, "bit field"}, {opaque.get(), "opaque"}};
  for (const auto& [type, text] : types) {
    make_set([&, type = type](hid_t file) {
      const Hdf5Handle space(H5Screate_simple(4, extents.data(), nullptr), H5Sclose);
      const Hdf5Handle dataset(
          MOTLEY_HDF5(path(), ExitCode::internal,
                      H5Dcreate2(file, "images", type, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
          H5Dclose);
    });
    test::expect_error(ExitCode::input, path() + ": data set `images` holds " + text + "; expected uint8",
                       [this] { describe_image_set(path()); });
  }
}

TEST_F(DatasetInfoTest, integers_that_use_a_part_of_their_bits_are_read_through_hdf5) {
  const Hdf5Handle upper_bits(H5Tcopy(H5T_STD_U16LE), H5Tclose);
  H5Tset_precision(upper_bits.get(), 8);
  H5Tset_offset(upper_bits.get(), 4);
  write_images(path(), "images", false);
  {
    const Hdf5Handle file(H5Fopen(path().c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    const hsize_t count = rows;
    const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const Hdf5Handle dataset(MOTLEY_HDF5(path(), ExitCode::internal,
                                         H5Dcreate2(file.get(), "labels", upper_bits.get(), space.get(),
                                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
                             H5Dclose);
    MOTLEY_HDF5(path(), ExitCode::internal,
                H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, labels_.data()));
  }
  const ImageSet set = describe_image_set(path());
  EXPECT_FALSE(set.source.fields[1].packed);
  EXPECT_EQ(set.source.fields[1].why_unpacked, "of integers that use 8 of 16 bits");
  std::vector<std::uint16_t> got(rows);
  Hdf5Rows(path(), set.source.fields[1], rows).read_range(0, rows, reinterpret_cast<std::byte*>(got.data()));
  EXPECT_TRUE(std::equal(got.begin(), got.end(), labels_.begin(), labels_.end()));
}

}  // namespace
}  // namespace motley::io
