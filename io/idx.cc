#include "io/idx.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "io/byte_stream.h"
#include "io/image_set.h"

namespace motley::io {
namespace {

constexpr std::uint32_t image_magic = 0x0803, label_magic = 0x0801;
constexpr std::uint64_t image_bytes_limit = 1ULL << 30;

struct Header {
  std::uint64_t samples = 0;
  std::uint64_t height = 1, width = 1;
  std::uint64_t header_bytes = 0;

  std::uint64_t row_bytes() const { return height * width; }
  std::uint64_t file_bytes() const { return header_bytes + samples * row_bytes(); }
};

std::string contents(const ByteStream& stream) {
  return stream.compressed() ? "decompressed content" : "file";
}

[[noreturn]] void fail_size(const ByteStream& stream, std::uint64_t found, const Header& header,
                            const char* rows) {
  fail(ExitCode::input, "{}: the {} has {} bytes; its header announces {} {}, which take {} bytes",
       stream.path(), contents(stream), found, header.samples, rows, header.file_bytes());
}

std::uint32_t read_u32(ByteStream& stream, const char* what) {
  std::array<std::byte, 4> bytes{};
  if (stream.read(bytes) != bytes.size()) {
    fail(ExitCode::input, "{}: ends inside the header, before the {}: not a whole IDX file", stream.path(),
         what);
  }
  std::uint32_t value = 0;
  for (const std::byte byte : bytes) value = value << 8 | std::to_integer<std::uint32_t>(byte);
  return value;
}

void check_magic(ByteStream& stream, std::uint32_t expected, const char* rows) {
  const std::uint32_t found = read_u32(stream, "magic number");
  if (found == expected) return;
  const std::uint32_t other = expected == image_magic ? label_magic : image_magic;
  const char* hint = found != other            ? ""
                     : expected == image_magic ? " (this is a label file: were the two swapped?)"
                                               : " (this is an image file: were the two swapped?)";
  fail(ExitCode::input, "{}: the magic number is 0x{:08x}; expected 0x{:08x}, an IDX file of uint8 {}{}",
       stream.path(), found, expected, rows, hint);
}

Header read_image_header(ByteStream& stream) {
  check_magic(stream, image_magic, "images");
  Header header;
  header.samples = read_u32(stream, "number of images");
  header.height = read_u32(stream, "height");
  header.width = read_u32(stream, "width");
  header.header_bytes = 16;
  if (header.samples == 0) fail(ExitCode::input, "{}: holds no images; expected at least one", stream.path());
  if (header.row_bytes() == 0 || header.row_bytes() > image_bytes_limit) {
    fail(ExitCode::input, "{}: the images are {} x {} pixels; expected at least one pixel and at most 2^30",
         stream.path(), header.height, header.width);
  }
  return header;
}

Header read_label_header(ByteStream& stream) {
  check_magic(stream, label_magic, "labels");
  Header header;
  header.samples = read_u32(stream, "number of labels");
  header.header_bytes = 8;
  if (header.samples == 0) fail(ExitCode::input, "{}: holds no labels; expected at least one", stream.path());
  return header;
}

// Known before anything is written where the file is not compressed.
void check_known_size(const ByteStream& stream, const Header& header, const char* rows) {
  const auto size = stream.known_size();
  if (size && *size != header.file_bytes()) fail_size(stream, *size, header, rows);
}

void read_rows(ByteStream& stream, const Header& header, const char* rows, std::uint64_t done,
               std::span<std::uint8_t> out) {
  const std::size_t got = stream.read(std::as_writable_bytes(out));
  if (got == out.size()) return;
  fail_size(stream, header.header_bytes + done * header.row_bytes() + got, header, rows);
}

void check_end(ByteStream& stream, const Header& header, const char* rows) {
  const std::uint64_t found = stream.drain();
  if (found != header.file_bytes()) fail_size(stream, found, header, rows);
}

}  // namespace

IdxSummary convert_idx(const std::string& images_path, const std::string& labels_path,
                       const std::string& out_path) {
  ByteStream images(images_path), labels(labels_path);
  const Header image_header = read_image_header(images);
  const Header label_header = read_label_header(labels);
  if (image_header.samples != label_header.samples) {
    fail(ExitCode::input, "{} has {} images and {} has {} labels; expected as many", images_path,
         image_header.samples, labels_path, label_header.samples);
  }
  check_known_size(images, image_header, "images");
  check_known_size(labels, label_header, "labels");
  refuse_same_file(images_path, out_path);
  refuse_same_file(labels_path, out_path);

  const IdxSummary summary{image_header.samples, static_cast<std::int64_t>(image_header.height),
                           static_cast<std::int64_t>(image_header.width)};
  ImageSetWriter writer(out_path, summary.samples, summary.height, summary.width, 1);
  constexpr std::uint64_t block_bytes = 4 << 20;
  const std::uint64_t row_bytes = image_header.row_bytes();
  const std::uint64_t block_rows = std::clamp<std::uint64_t>(block_bytes / row_bytes, 1, summary.samples);
  std::vector<std::uint8_t> pixels(block_rows * row_bytes), classes(block_rows);
  for (std::uint64_t done = 0; done < summary.samples;) {
    const std::uint64_t rows = std::min(block_rows, summary.samples - done);
    read_rows(images, image_header, "images", done, std::span(pixels).first(rows * row_bytes));
    read_rows(labels, label_header, "labels", done, std::span(classes).first(rows));
    writer.append(pixels.data(), classes.data(), rows);
    done += rows;
  }
  check_end(images, image_header, "images");
  check_end(labels, label_header, "labels");
  writer.finish();
  return summary;
}

}  // namespace motley::io
