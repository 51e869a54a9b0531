// A file read from front to back, decompressed on the way when it is gzip (RFC 1952) by its content, whatever
// its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace motley::io {

class ByteStream {
 public:
  // Throws Error(input) for a file that is missing, unreadable or not a regular file.
  explicit ByteStream(const std::string& path);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Fills `out` as far as the content goes and returns how much that is. Throws Error(input) when a gzip
  // stream is cut short or damaged (by its own checksum and length), or when something follows it that is not
  // gzip.
  std::size_t read(std::span<std::byte> out);

  // Reads to the end and returns the length of the whole content.
  std::uint64_t drain();

  // The length of the content, where the file says it without being read: none when compressed.
  std::optional<std::uint64_t> known_size() const;
  bool compressed() const;
  const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley::io
