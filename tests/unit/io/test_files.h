// Files of every kind that the tests of io need, made by the library itself rather than by motley's writer.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "io/hdf5.h"

namespace motley::test {

struct Layout {
  std::vector<hsize_t> chunk;  // contiguous when empty
  unsigned gzip_level = 0;     // only with chunks
  bool shuffle = false;        // only with chunks
};

class Hdf5File {
 public:
  explicit Hdf5File(const std::string& path, hsize_t userblock_bytes = 0) : path_(path) {
    const io::Hdf5Handle creation(MOTLEY_HDF5(path, ExitCode::internal, H5Pcreate(H5P_FILE_CREATE)),
                                  H5Pclose);
    H5Pset_userblock(creation.get(), userblock_bytes);
    file_ = {MOTLEY_HDF5(path, ExitCode::internal,
                         H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), H5P_DEFAULT)),
             H5Fclose};
  }

  // `memory` is the type of `data`, `file` the type on disk. Nothing is written when data is null.
  void add(const char* name, const std::vector<hsize_t>& extents, hid_t file, hid_t memory, const void* data,
           const Layout& layout = {}) {
    const io::Hdf5Handle space(
        MOTLEY_HDF5(path_, ExitCode::internal,
                    H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr)),
        H5Sclose);
    const io::Hdf5Handle creation(MOTLEY_HDF5(path_, ExitCode::internal, H5Pcreate(H5P_DATASET_CREATE)),
                                  H5Pclose);
    if (!layout.chunk.empty()) {
      H5Pset_chunk(creation.get(), static_cast<int>(layout.chunk.size()), layout.chunk.data());
      if (layout.shuffle) H5Pset_shuffle(creation.get());
      if (layout.gzip_level > 0) H5Pset_deflate(creation.get(), layout.gzip_level);
    }
    const io::Hdf5Handle dataset(MOTLEY_HDF5(path_, ExitCode::internal,
                                             H5Dcreate2(file_.get(), name, file, space.get(), H5P_DEFAULT,
                                                        creation.get(), H5P_DEFAULT)),
                                 H5Dclose);
    if (data == nullptr) return;
    MOTLEY_HDF5(path_, ExitCode::internal,
                H5Dwrite(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data));
  }

  void remove(const char* name) {
    MOTLEY_HDF5(path_, ExitCode::internal, H5Ldelete(file_.get(), name, H5P_DEFAULT));
  }

  hid_t id() const { return file_.get(); }

  void add_group(const char* name) {
    const io::Hdf5Handle group(
        MOTLEY_HDF5(path_, ExitCode::internal,
                    H5Gcreate2(file_.get(), name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)),
        H5Gclose);
  }

 private:
  std::string path_;
  io::Hdf5Handle file_;
};

// For tests that write thousands of files: no fsync, and a new file each time, since file systems flush one
// that is truncated and written again.
inline void write_bytes(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << content;
}

// Byte `column` of row `row` of a made-up field: neighbours differ, and so do rows 256 apart.
inline std::uint8_t pattern(std::uint64_t row, std::uint64_t column) {
  return static_cast<std::uint8_t>(row * 131 + (row >> 8) * 17 + column * 29 + (column >> 8));
}

inline std::vector<std::uint8_t> pattern_rows(std::uint64_t rows, std::uint64_t row_bytes) {
  std::vector<std::uint8_t> bytes(rows * row_bytes);
  for (std::uint64_t i = 0; i < rows; ++i) {
    for (std::uint64_t j = 0; j < row_bytes; ++j) bytes[i * row_bytes + j] = pattern(i, j);
  }
  return bytes;
}

// The code and the sentence of the Error that `work` throws.
template <class Work>
void expect_error(ExitCode code, const std::string& sentence, const Work& work) {
  try {
    work();
    ADD_FAILURE() << "no error; expected: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(std::string(error.what()), sentence);
  }
}

// The same where only a part of the sentence is motley's own.
template <class Work>
void expect_error_with(ExitCode code, const std::vector<std::string>& parts, const Work& work) {
  try {
    work();
    ADD_FAILURE() << "no error; expected one with: " << parts.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "no \"" << part << "\" in: " << error.what();
    }
  }
}

}  // namespace motley::test
