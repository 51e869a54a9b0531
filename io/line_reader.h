// The lines of several text files, one after the other, .gz or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/byte_stream.h"

namespace motley::io {

class LineReader {
 public:
  enum class Event : std::uint8_t { line, end_of_file, end };

  // Lines longer than `max_line_bytes` come in pieces, cut behind a space where there is one and never inside
  // a character, so that memory is bounded whatever the files hold.
  LineReader(std::vector<std::string> paths, std::size_t max_line_bytes);

  // `line` is without its end, CR LF included, and holds until the next call. end_of_file comes once after
  // each file. Error(input) when a file cannot be read.
  Event next(std::string_view& line);

  // Of the line that came last; not after end_of_file.
  const std::string& path() const { return paths_[file_]; }
  std::uint64_t line_number() const { return line_number_; }
  // Of the content, over all files so far.
  std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  bool refill();
  std::string_view take(std::size_t bytes, std::size_t end_bytes);
  std::size_t place_to_cut(std::string_view text) const;

  std::vector<std::string> paths_;
  std::size_t max_line_bytes_;
  std::size_t file_ = 0;
  std::unique_ptr<ByteStream> stream_;
  std::string buffer_;
  std::size_t begin_ = 0, end_ = 0;  // what is in the buffer and was not handed out
  bool stream_ended_ = false;
  std::uint64_t line_number_ = 0, bytes_read_ = 0;
  bool line_goes_on_ = false;  // the last one was cut
};

// Whether a line holds nothing but whitespace, of Unicode.
bool is_blank(std::string_view line);

}  // namespace motley::io
