#include "io/cifar.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <span>

#include "core/error.h"
#include "core/files.h"
#include "io/byte_stream.h"
#include "io/image_set.h"

namespace motley::io {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t side = 32, channels = 3;
constexpr std::size_t plane_bytes = side * side, image_bytes = plane_bytes * channels;

std::size_t label_bytes(CifarKind kind) {
  return kind == CifarKind::cifar10 ? 1 : 2;
}

std::uint64_t record_bytes(CifarKind kind) {
  return label_bytes(kind) + image_bytes;
}

const char* name_of(CifarKind kind) {
  return kind == CifarKind::cifar10 ? "CIFAR-10" : "CIFAR-100";
}

std::uint64_t size_of_file(const std::string& path) {
  const ByteStream stream(path);
  const auto size = stream.known_size();
  if (!size) fail(ExitCode::input, "{} is gzip-compressed; expected the unpacked .bin file", path);
  return *size;
}

CifarKind recognise(const std::string& path) {
  const std::uint64_t bytes = size_of_file(path);
  const bool is_10 = bytes % record_bytes(CifarKind::cifar10) == 0;
  const bool is_100 = bytes % record_bytes(CifarKind::cifar100) == 0;
  if (bytes == 0 || is_10 == is_100) {
    fail(ExitCode::input,
         "{} has {} bytes; expected a multiple of {} (records of CIFAR-10) or of {} (of CIFAR-100){}", path,
         bytes, record_bytes(CifarKind::cifar10), record_bytes(CifarKind::cifar100),
         bytes > 0 && is_10 ? ", and not of both" : "");
  }
  return is_10 ? CifarKind::cifar10 : CifarKind::cifar100;
}

// Samples in all files together.
std::uint64_t count_samples(const CifarFiles& files) {
  std::uint64_t samples = 0;
  for (const std::string& path : files.paths) {
    const std::uint64_t bytes = size_of_file(path), record = record_bytes(files.kind);
    if (bytes == 0 || bytes % record != 0) {
      fail(ExitCode::input, "{} has {} bytes; expected a multiple of {}, the size of a record of {}", path,
           bytes, record, name_of(files.kind));
    }
    samples += bytes / record;
  }
  return samples;
}

// Planes [channels, pixels] to [pixels, channels].
void interleave(const std::uint8_t* planes, std::uint8_t* out) {
  for (std::size_t p = 0; p < plane_bytes; ++p) {
    for (std::size_t c = 0; c < channels; ++c) out[p * channels + c] = planes[c * plane_bytes + p];
  }
}

void check_label(const std::string& path, std::uint64_t record, const char* what, std::uint8_t label,
                 int classes) {
  if (label < classes) return;
  fail(ExitCode::input, "{}: record {} has the {} {}; expected 0 to {}", path, record, what, label,
       classes - 1);
}

// The label that is asked for, once all are looked at.
std::uint8_t label_of(const std::string& path, std::uint64_t record, const std::uint8_t* labels,
                      CifarKind kind, bool coarse) {
  if (kind == CifarKind::cifar10) {
    check_label(path, record, "label", labels[0], 10);
    return labels[0];
  }
  check_label(path, record, "coarse label", labels[0], 20);
  check_label(path, record, "fine label", labels[1], 100);
  return coarse ? labels[0] : labels[1];
}

void append_file(const std::string& path, CifarKind kind, bool coarse, ImageSetWriter& writer) {
  constexpr std::size_t records_at_once = 1024;
  const std::size_t record = record_bytes(kind);
  ByteStream stream(path);
  std::vector<std::uint8_t> bytes(records_at_once * record), images(records_at_once * image_bytes),
      labels(records_at_once);
  const std::uint64_t total = stream.known_size().value_or(0) / record;
  for (std::uint64_t done = 0; done < total;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(records_at_once, total - done));
    const std::size_t got = stream.read(std::as_writable_bytes(std::span(bytes).first(count * record)));
    if (got != count * record)
      fail(ExitCode::input, "{} was cut short while it was read: {} bytes of record {} are left", path,
           got % record, done + got / record);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint8_t* const from = bytes.data() + i * record;
      labels[i] = label_of(path, done + i, from, kind, coarse);
      interleave(from + label_bytes(kind), images.data() + i * image_bytes);
    }
    writer.append(images.data(), labels.data(), count);
    done += count;
  }
}

}  // namespace

CifarFiles recognise_cifar(const std::vector<std::string>& paths) {
  MOTLEY_CHECK(!paths.empty());
  CifarFiles files{recognise(paths.front()), paths};
  for (const std::string& path : paths) {
    if (recognise(path) == files.kind) continue;
    fail(ExitCode::input, "{} is a file of {} and {} is not; expected files of one data set", paths.front(),
         name_of(files.kind), path);
  }
  return files;
}

CifarFiles find_cifar(const std::string& directory, const std::string& subset) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) fail(ExitCode::input, "there is no directory {}", directory);
  const auto path = [&](const std::string& name) { return (fs::path(directory) / name).string(); };
  const auto exists = [&](const char* name) { return fs::exists(path(name), error); };
  const bool train = subset == "train";
  if (exists("data_batch_1.bin") || exists("test_batch.bin")) {
    CifarFiles files{CifarKind::cifar10, {}};
    if (!train) files.paths.push_back(path("test_batch.bin"));
    for (int i = 1; train && i <= 5; ++i) files.paths.push_back(path(fmt::format("data_batch_{}.bin", i)));
    return files;
  }
  if (exists("train.bin") || exists("test.bin"))
    return {CifarKind::cifar100, {path(train ? "train.bin" : "test.bin")}};
  fail(ExitCode::input,
       "{} has no files of CIFAR; expected data_batch_1.bin to data_batch_5.bin and test_batch.bin, or "
       "train.bin and test.bin",
       directory);
}

CifarSummary convert_cifar(const CifarFiles& files, bool coarse, const std::string& out_path) {
  if (coarse && files.kind == CifarKind::cifar10)
    fail(ExitCode::usage, "--coarse is for CIFAR-100; {} is a file of CIFAR-10, which has one kind of labels",
         files.paths.front());
  CifarSummary summary;
  summary.samples = count_samples(files);
  summary.classes = files.kind == CifarKind::cifar10 ? 10 : coarse ? 20 : 100;
  for (const std::string& path : files.paths) refuse_same_file(path, out_path);
  ImageSetWriter writer(out_path, summary.samples, side, side, channels, summary.classes);
  for (const std::string& path : files.paths) append_file(path, files.kind, coarse, writer);
  writer.finish();
  return summary;
}

}  // namespace motley::io
