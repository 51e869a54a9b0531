#include "io/line_reader.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstring>

namespace motley::io {
namespace {

constexpr std::size_t block_bytes = 1 << 18;

bool inside_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

LineReader::LineReader(std::vector<std::string> paths, std::size_t max_line_bytes)
    : paths_(std::move(paths)), max_line_bytes_(max_line_bytes) {
  buffer_.resize(max_line_bytes_ + block_bytes);
}

// Reads more behind what is left; false when there is no more.
bool LineReader::refill() {
  if (stream_ended_) return false;
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t room = buffer_.size() - end_;
  const std::size_t got =
      stream_->read({reinterpret_cast<std::byte*>(buffer_.data()) + end_, std::min(room, block_bytes)});
  if (got == 0) stream_ended_ = true;
  end_ += got;
  return got > 0;
}

std::string_view LineReader::take(std::size_t bytes, std::size_t end_bytes) {
  std::string_view line(buffer_.data() + begin_, bytes);
  begin_ += bytes + end_bytes;
  bytes_read_ += bytes + end_bytes;
  if (!line_goes_on_) ++line_number_;
  line_goes_on_ = end_bytes == 0;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

std::size_t LineReader::place_to_cut(std::string_view text) const {
  const std::size_t space = text.find_last_of(" \t");
  if (space != std::string_view::npos && space >= text.size() / 2) return space + 1;
  constexpr std::size_t longest_character = 4;
  for (std::size_t back = 0; back < longest_character; ++back) {
    if (!inside_character(text[text.size() - 1 - back])) return text.size() - 1 - back;
  }
  return text.size();  // not UTF-8
}

LineReader::Event LineReader::next(std::string_view& line) {
  if (stream_ == nullptr) {
    if (file_ == paths_.size()) return Event::end;
    stream_ = std::make_unique<ByteStream>(paths_[file_]);
    begin_ = end_ = 0;
    line_number_ = 0;
    stream_ended_ = line_goes_on_ = false;
  }
  std::size_t searched = 0;
  while (true) {
    const std::string_view have(buffer_.data() + begin_, end_ - begin_);
    const std::size_t found = have.find('\n', searched);
    if (found != std::string_view::npos && found <= max_line_bytes_) {
      line = take(found, 1);
      return Event::line;
    }
    if (have.size() > max_line_bytes_) {
      line = take(place_to_cut(have.substr(0, max_line_bytes_)), 0);
      return Event::line;
    }
    searched = have.size();
    if (refill()) continue;
    if (have.empty()) {
      stream_.reset();
      ++file_;
      return Event::end_of_file;
    }
    line = take(have.size(), 0);
    return Event::line;
  }
}

bool is_blank(std::string_view line) {
  const auto length = static_cast<std::int64_t>(line.size());
  for (std::int64_t at = 0; at < length;) {
    UChar32 c = 0;
    U8_NEXT(line.data(), at, length, c);
    if (c < 0 || u_isUWhiteSpace(c) == 0) return false;
  }
  return true;
}

}  // namespace motley::io
