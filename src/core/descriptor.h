// An open file. Every failure is an Error that names the file and what the system said; calls that a signal
// interrupts, or that do less than was asked for, go on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "core/error.h"

namespace motley {

class Descriptor {
 public:
  // `flags` as for open(2); with O_CREAT the file gets the usual permissions. Errors carry `code`.
  Descriptor(const std::filesystem::path& path, int flags, ExitCode code);
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return descriptor_; }

  // At the position that read() and write_all() move. read() returns less than `bytes` only at the end.
  std::size_t read(void* out, std::size_t bytes) const;
  void write_all(const void* data, std::size_t bytes) const;

  // Elsewhere. A file that ends before is an error.
  void read_at(std::uint64_t offset, void* out, std::size_t bytes) const;
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes) const;

  void resize(std::uint64_t bytes) const;
  void sync() const;

 private:
  std::string path_;
  ExitCode code_;
  int descriptor_;
};

}  // namespace motley
