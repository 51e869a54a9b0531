// How fast a rank gets shuffled samples out of a packed image file in the page cache, through the window
// reader and by one POSIX pread per row and field, timed in turn, every byte compared.
//
//   mpirun -n 2 reader_bench [DIRECTORY]     (default: the directory for temporary files)
//
// samples_per_s: of the slowest rank, rows / (time from request() to the return of take()), with nothing read
// ahead: a run overlaps this with the compute. All ranks read at the same time.
#include <fcntl.h>
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "clocks.h"
#include "comm/mpi.h"
#include "core/error.h"
#include "core/permutation.h"
#include "io/image_set.h"
#include "io/window_reader.h"

namespace motley {
namespace {

constexpr std::uint64_t samples = 60000;
constexpr std::int64_t height = 28, width = 28;
constexpr std::uint64_t row_bytes = height * width;
constexpr int windows = 30, warm_up_windows = 3;
constexpr int steps_per_window = 16;

using bench::cpu_s;
using bench::now_s;

// Wall and processor time, summed over windows.
class Stopwatch {
 public:
  void start() {
    wall_start_ = now_s();
    cpu_start_ = cpu_s();
  }
  void stop() {
    wall_s += now_s() - wall_start_;
    cpu_used_s += cpu_s() - cpu_start_;
  }
  double wall_s = 0, cpu_used_s = 0;

 private:
  double wall_start_ = 0, cpu_start_ = 0;
};

struct Contents {
  std::vector<std::uint8_t> images = std::vector<std::uint8_t>(samples * row_bytes);
  std::vector<std::uint8_t> labels = std::vector<std::uint8_t>(samples);

  Contents() {
    for (std::uint64_t i = 0; i < images.size(); ++i) {
      images[i] = static_cast<std::uint8_t>((i * 0x9E3779B97F4A7C15ULL) >> 56);
    }
    for (std::uint64_t i = 0; i < samples; ++i) labels[i] = static_cast<std::uint8_t>(i * 7 % 10);
  }
};

void verify(const Contents& contents, const std::vector<std::uint64_t>& rows, const std::byte* images,
            const std::byte* labels) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool same =
        std::memcmp(images + i * row_bytes, &contents.images[rows[i] * row_bytes], row_bytes) == 0 &&
        std::to_integer<std::uint8_t>(labels[i]) == contents.labels[rows[i]];
    if (!same) fail(ExitCode::internal, "row {} arrived with other bytes than were written", rows[i]);
  }
}

// The peer: what a loader does that knows nothing but the rows it wants.
class RowByRow {
 public:
  explicit RowByRow(const io::RowSource& source)
      : source_(source), file_(::open(source.path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~RowByRow() { ::close(file_); }
  RowByRow(const RowByRow&) = delete;
  RowByRow& operator=(const RowByRow&) = delete;

  std::vector<std::vector<std::byte>> read(const std::vector<std::uint64_t>& rows) const {
    std::vector<std::vector<std::byte>> out;
    for (const io::Field& field : source_.fields) {
      const std::size_t bytes = field.row_bytes();
      std::vector<std::byte>& buffer = out.emplace_back(rows.size() * bytes);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto offset = static_cast<off_t>(field.file_offset + rows[i] * bytes);
        if (::pread(file_, buffer.data() + i * bytes, bytes, offset) != static_cast<ssize_t>(bytes)) {
          fail(ExitCode::internal, "pread came back short");
        }
      }
    }
    return out;
  }

 private:
  const io::RowSource& source_;
  int file_;
};

double slowest(double seconds) {
  MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return seconds;
}

void run_case(const io::RowSource& source, const Contents& contents, int samples_per_step) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const auto rows_per_window = static_cast<std::uint64_t>(steps_per_window * samples_per_step);
  const KeyedPermutation order(samples, 1, 1);
  std::uint64_t next = static_cast<std::uint64_t>(rank) * rows_per_window;

  io::WindowReader reader(source, MPI_COMM_WORLD);
  const RowByRow peer(source);
  Stopwatch reader_time, peer_time;
  for (int window = -warm_up_windows; window < windows; ++window) {
    std::vector<std::uint64_t> rows(rows_per_window);
    for (std::uint64_t i = 0; i < rows_per_window; ++i) rows[i] = order((next + i) % samples);
    next += rows_per_window * static_cast<std::uint64_t>(ranks);

    MPI_Barrier(MPI_COMM_WORLD);
    if (window == 0) reader_time = peer_time = {};
    reader_time.start();
    reader.request(rows);
    const io::Window got = reader.take(60);
    reader_time.stop();
    verify(contents, rows, got.fields[0].data(), got.fields[1].data());

    MPI_Barrier(MPI_COMM_WORLD);
    peer_time.start();
    const auto plain = peer.read(rows);
    peer_time.stop();
    verify(contents, rows, plain[0].data(), plain[1].data());
  }
  const double rows = static_cast<double>(rows_per_window) * windows;
  const double samples_per_s = rows / slowest(reader_time.wall_s);
  const double peer_samples_per_s = rows / slowest(peer_time.wall_s);
  if (rank != 0) return;
  fmt::print(R"({{"bench":"reader","case":"shuffled {}x{}x1 uint8 + label, {} steps x {}","ranks":{},)"
             R"("samples_per_s":{:.0f},"peer":"pread per row","peer_samples_per_s":{:.0f},"ratio":{:.2f},)"
             R"("cpu_us_per_sample":{:.2f},"peer_cpu_us_per_sample":{:.2f},"verified":true}})"
             "\n",
             height, width, steps_per_window, samples_per_step, ranks, samples_per_s, peer_samples_per_s,
             samples_per_s / peer_samples_per_s, 1e6 * reader_time.cpu_used_s / rows,
             1e6 * peer_time.cpu_used_s / rows);
  std::fflush(stdout);
}

void run(const std::filesystem::path& directory) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string path = (directory / "motley-reader-bench.h5").string();
  const Contents contents;
  if (rank == 0) {
    io::ImageSetWriter writer(path, samples, height, width, 1);
    writer.append(contents.images.data(), contents.labels.data(), samples);
    writer.finish();
  }
  MPI_Barrier(MPI_COMM_WORLD);
  const io::ImageSet set = io::describe_image_set(path);
  for (const int samples_per_step : {64, 128, 256}) run_case(set.source, contents, samples_per_step);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) std::filesystem::remove(path);
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  try {
    const motley::comm::MpiSession session(&argc, &argv);
    motley::run(argc > 1 ? std::filesystem::path(argv[1]) : std::filesystem::temp_directory_path());
    return 0;
  } catch (const motley::Error& error) {
    fmt::print(stderr, "reader_bench: {}\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  }
}
