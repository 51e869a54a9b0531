#include "checkpoint/layout_file.h"

#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h>  // where 1.13 and later declare what drivers need
#endif

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

namespace motley::checkpoint {

// The driver's file is handed to HDF5 by way of the access property list, whose driver info is a LayoutFile*.
struct LayoutFile::Driver {
  H5FD_t header{};  // first: HDF5 knows a file by it
  LayoutFile* layout = nullptr;

  static LayoutFile& of(const H5FD_t* file) { return *reinterpret_cast<const Driver*>(file)->layout; }

  static H5FD_t* open(const char*, unsigned, hid_t access, haddr_t) {
    const void* info = H5Pget_driver_info(access);
    if (info == nullptr) return nullptr;
    auto* const driver = new (std::nothrow) Driver;
    if (driver == nullptr) return nullptr;
    driver->layout = *static_cast<LayoutFile* const*>(info);
    return &driver->header;
  }
  static herr_t close(H5FD_t* file) {
    delete reinterpret_cast<Driver*>(file);
    return 0;
  }
  static haddr_t get_size(const H5FD_t* file, H5FD_mem_t) { return of(file).size_; }
  static herr_t set_size(H5FD_t* file, H5FD_mem_t, haddr_t size) {
    of(file).size_ = size;
    return 0;
  }
  static herr_t read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, std::size_t bytes, void* out) {
    const auto& pages = of(file).pages_;
    auto* to = static_cast<char*>(out);
    while (bytes > 0) {
      const std::size_t offset = at % page_bytes;
      const std::size_t part = std::min(bytes, page_bytes - offset);
      const auto page = pages.find(at / page_bytes);
      if (page == pages.end()) {
        std::memset(to, 0, part);
      } else {
        std::memcpy(to, page->second.data() + offset, part);
      }
      to += part, at += part, bytes -= part;
    }
    return 0;
  }
  static herr_t write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t at, std::size_t bytes, const void* data) {
    const auto* from = static_cast<const char*>(data);
    try {
      while (bytes > 0) {
        const std::size_t offset = at % page_bytes;
        const std::size_t part = std::min(bytes, page_bytes - offset);
        std::memcpy(of(file).pages_[at / page_bytes].data() + offset, from, part);
        from += part, at += part, bytes -= part;
      }
    } catch (const std::exception&) {
      return -1;  // out of memory; no exception may pass through C
    }
    return 0;
  }

  static H5FD_class_t description() {
    H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION
    driver.version = H5FD_CLASS_VERSION;
    driver.value = static_cast<H5FD_class_value_t>(H5_VFD_RESERVED + 77);
#endif
    driver.name = "motley_layout";
    driver.maxaddr = HADDR_MAX;
    driver.fc_degree = H5F_CLOSE_STRONG;
    driver.fapl_size = sizeof(void*);
    driver.open = open;
    driver.close = close;
    driver.get_eoa = get_size;
    driver.set_eoa = set_size;
    driver.get_eof = get_size;
    driver.read = read;
    driver.write = write;
    return driver;
  }
};

LayoutFile::LayoutFile(std::string name) : name_(std::move(name)) {
  constexpr ExitCode code = ExitCode::checkpoint;
  const H5FD_class_t description = Driver::description();
  driver_ = {MOTLEY_HDF5(name_, code, H5FDregister(&description)), H5FDunregister};
  const io::Hdf5Handle access(MOTLEY_HDF5(name_, code, H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  LayoutFile* const self = this;
  MOTLEY_HDF5(name_, code, H5Pset_driver(access.get(), driver_.get(), &self));
  file_ = {MOTLEY_HDF5(name_, code, H5Fcreate(name_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())),
           H5Fclose};
}

void LayoutFile::close() {
  MOTLEY_HDF5(name_, ExitCode::checkpoint, file_.close());
}

}  // namespace motley::checkpoint
