// An HDF5 file that HDF5 lays out in memory and never writes itself.
//
// HDF5 (1.10 at least) does not survive a full disk: a file that it cannot flush stays half closed, and the
// process crashes when the library shuts down, after everything was said and with the wrong exit code. It
// also keeps its mutex while it writes. So the structure of a file is made on a file driver that keeps in
// memory the few bytes that HDF5 writes, and plain writes bring them, and the numbers of the data sets, to
// the disk.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "io/hdf5.h"

namespace motley::checkpoint {

class LayoutFile {
 public:
  // `name` is what errors call it.
  explicit LayoutFile(std::string name);
  // HDF5 holds its address.
  LayoutFile(const LayoutFile&) = delete;
  LayoutFile& operator=(const LayoutFile&) = delete;

  hid_t id() const { return file_.get(); }
  // Ends the layout: all bytes that HDF5 wrote are in pages() now.
  void close();

  // How long the file is, with the space of the data sets.
  std::uint64_t size() const { return size_; }
  static constexpr std::size_t page_bytes = 4096;
  using Page = std::array<char, page_bytes>;
  // By number of the page; what is not there is zero, or the content of a data set. The last may reach beyond
  // size().
  const std::map<std::uint64_t, Page>& pages() const { return pages_; }

 private:
  struct Driver;  // HDF5's callbacks

  std::string name_;
  std::map<std::uint64_t, Page> pages_;
  std::uint64_t size_ = 0;
  io::Hdf5Handle driver_;
  io::Hdf5Handle file_;
};

}  // namespace motley::checkpoint
